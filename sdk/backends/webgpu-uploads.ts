import type { GpuMemory } from './webgpu-memory.ts'

/** Sizes of the buffers, powers of two between these; longer data goes in pieces of the larger. */
const SMALLEST = 1 << 18
export const PIECE = 1 << 24
/** Bytes of all of them: a few pieces that the device still reads while the next ones are filled. */
const ROOM = 1 << 26

/** Buffers that stay mapped for writing: filled here, copied from by recorded commands, mapped again once those have run. */
export class Uploads {
  private readonly device: GPUDevice
  private readonly memory: GpuMemory
  private readonly idle: GPUBuffer[] = []
  /** Copies from these are recorded and not yet submitted. */
  private recorded: GPUBuffer[] = []
  /** A buffer must not be collected while it is mapped. */
  private readonly all = new Set<GPUBuffer>()
  private held = 0
  private bounce: Uint8Array<ArrayBuffer> | undefined
  private disposed = false

  constructor(device: GPUDevice, memory: GpuMemory) {
    this.device = device
    this.memory = memory
  }

  /**
   * Data in a buffer to copy from, in commands that are submitted before `submitted` is called.
   * @param data at most `PIECE` bytes of any memory, shared and resizable too
   * @returns undefined where all buffers are under way, or the memory limit or the device gives no more
   */
  stage(data: Uint8Array): GPUBuffer | undefined {
    const buffer = this.take(data.byteLength)
    if (!buffer) return undefined
    try {
      new Uint8Array(buffer.getMappedRange(0, data.byteLength)).set(data)
      buffer.unmap()
    } catch {
      // A device that is being lost takes its mapped memory along.
      this.drop(buffer)
      return undefined
    }
    this.recorded.push(buffer)
    return buffer
  }

  /** Bytes whose copies are recorded and not yet submitted. */
  get waiting(): number {
    return this.recorded.reduce((sum, { size }) => sum + size, 0)
  }

  /** The commands that copy from what was staged so far have been submitted. */
  submitted(): void {
    if (this.recorded.length === 0) return
    for (const buffer of this.recorded) void this.mapAgain(buffer)
    this.recorded = []
  }

  private async mapAgain(buffer: GPUBuffer): Promise<void> {
    try {
      await buffer.mapAsync(2) // WRITE
      if (this.all.has(buffer)) this.idle.push(buffer)
    } catch {
      this.drop(buffer)
    }
  }

  /** A mapped buffer of at least `bytes`, idle or new; small idle ones make room for a larger one. */
  private take(bytes: number): GPUBuffer | undefined {
    if (this.disposed) return undefined
    const size = 2 ** Math.ceil(Math.log2(Math.max(SMALLEST, bytes)))
    const exact = this.idle.findIndex((buffer) => buffer.size === size)
    if (exact >= 0) return this.idle.splice(exact, 1)[0]
    if (this.fits(size)) return this.create(size)
    const larger = this.idle.findIndex((buffer) => buffer.size > size)
    if (larger >= 0) return this.idle.splice(larger, 1)[0]
    if (this.idle.length === 0) return undefined
    this.free(this.idle.splice(0))
    return this.fits(size) ? this.create(size) : undefined
  }

  private fits(size: number): boolean {
    return this.held + size <= ROOM && this.memory.admits(size)
  }

  private create(size: number): GPUBuffer | undefined {
    let buffer: GPUBuffer
    try {
      // MAP_WRITE | COPY_SRC
      buffer = this.device.createBuffer({ label: 'upload', size, usage: 0x02 | 0x04, mappedAtCreation: true })
    } catch {
      return undefined
    }
    this.all.add(buffer)
    this.count(size)
    return buffer
  }

  private drop(buffer: GPUBuffer): void {
    if (!this.all.delete(buffer)) return
    this.count(-buffer.size)
    buffer.destroy()
  }

  private count(bytes: number): void {
    this.held += bytes
    this.memory.lend(bytes)
  }

  private free(buffers: readonly GPUBuffer[]): void {
    if (buffers.length === 0) return
    for (const buffer of buffers) this.drop(buffer)
    // A destroyed buffer's memory goes back at the next submit.
    this.device.queue.submit([])
  }

  /**
   * Data as a queue takes it, until the next call. A copy where its memory is shared, which crashes Dawn, or can change its
   * size, which browsers refuse; also where it comes from another realm.
   */
  queueable(data: Uint8Array): Uint8Array<ArrayBuffer> {
    const { buffer, byteLength } = data
    const plain = buffer instanceof ArrayBuffer && !(buffer as { resizable?: boolean }).resizable
    if (plain) return data as Uint8Array<ArrayBuffer>
    if (byteLength > SMALLEST) return new Uint8Array(data)
    this.bounce ??= new Uint8Array(SMALLEST)
    this.bounce.set(data)
    return this.bounce.subarray(0, byteLength)
  }

  /** Frees all but those with copies that are not yet submitted; what was submitted still runs. */
  trim(): void {
    this.idle.length = 0
    this.free([...this.all].filter((buffer) => !this.recorded.includes(buffer)))
  }

  dispose(): void {
    this.disposed = true
    this.recorded = []
    this.idle.length = 0
    for (const buffer of this.all) this.drop(buffer)
  }
}
