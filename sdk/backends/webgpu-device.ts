import { ParisError } from '../errors.ts'

/** What has gone wrong with a device so far, and who is to be told. Every result passes by here. */
export class DeviceState {
  private readonly device: GPUDevice
  private loss: ParisError | undefined
  private failure: ParisError | undefined
  private readonly told: Promise<unknown>
  private readonly waiting = new Set<(loss: ParisError) => void>()
  private validated: Promise<unknown> = Promise.resolve()

  constructor(device: GPUDevice) {
    this.device = device
    device.addEventListener?.('uncapturederror', this.onError)
    this.told = device.lost.then((info) => {
      this.loss = deviceLost(`a lost device (${info.reason || 'unknown'}: ${info.message})`, 'a live device')
      for (const reject of this.waiting) reject(this.loss)
    })
  }

  /** Throws `device_lost` on a lost device, or on one that refused a command: what it holds is not what was asked for. */
  check(): void {
    if (this.loss) throw this.loss
    if (this.failure) throw this.failure
  }

  /** Waits until a loss that is under way has been told, then checks. */
  async settle(): Promise<void> {
    await Promise.race([this.told, new Promise((resolve) => setTimeout(resolve, 50))])
    this.check()
  }

  /** The outcome of work on the device, or its loss as soon as that is known. */
  guard<T>(work: Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.waiting.add(reject)
      work.then(resolve, reject).finally(() => this.waiting.delete(reject))
    })
  }

  /** Runs what ends in a submit; `submitted` tells whether the device took it. */
  submit(body: () => void): void {
    this.device.pushErrorScope('validation')
    try {
      body()
    } finally {
      const scope = this.device.popErrorScope().then(
        (error) => error && this.fail(error),
        () => {},
      )
      // Not Promise.all, whose value would hold that of every submit before.
      this.validated = this.validated.then(() => scope)
    }
  }

  /** Waits until everything submitted so far has been accepted, which is long before it has run. */
  async submitted(): Promise<void> {
    await this.guard(this.validated)
    this.check()
  }

  /** Stops listening to the device, which may outlive the backend. */
  leave(): void {
    this.device.removeEventListener?.('uncapturederror', this.onError)
  }

  private readonly onError = (event: GPUUncapturedErrorEvent) => this.fail(event.error)

  private fail(error: GPUError): void {
    if (error.constructor.name === 'GPUOutOfMemoryError')
      this.failure ??= new ParisError('out_of_memory', {
        where: 'webgpu',
        got: `working memory that the device did not have (${error.message})`,
        want: 'a few MiB beside the buffers',
        fix: 'Dispose the engine and open it with less capacity.',
      })
    else this.failure ??= deviceLost(`a refused command (${error.message})`, 'commands that all run')
  }
}

function deviceLost(got: string, want: string): ParisError {
  const fix = 'Dispose the engine and create it again; what was on the device is gone.'
  return new ParisError('device_lost', { where: 'webgpu', got, want, fix })
}
