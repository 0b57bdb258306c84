import { base64url } from '../sdk/http/ids.ts'
import { within } from './serving.ts'

declare const crypto: {
  DigestStream: new (algorithm: 'SHA-256') => WritableStream<Uint8Array> & { readonly digest: Promise<ArrayBuffer> }
}

/** The body of a request on its way through an object, which goes on where the handler stops. */
export class PassingBody {
  /** The request with this body. */
  readonly request: Request
  private readonly reader: ReadableStreamDefaultReader<Uint8Array> | undefined
  private readonly hash: InstanceType<typeof crypto.DigestStream> | undefined
  private readonly hashing: WritableStreamDefaultWriter<Uint8Array> | undefined
  private ended = false
  private reading: Promise<unknown> = Promise.resolve()

  /** @param hashed whether `digest` will be asked for */
  constructor(given: Request, hashed: boolean) {
    this.hash = hashed ? new crypto.DigestStream('SHA-256') : undefined
    this.hashing = this.hash?.getWriter()
    this.reader = given.body?.getReader()
    if (!this.reader) void this.end()
    this.request = this.reader ? new Request(given, { body: this.stream(), duplex: 'half' } as RequestInit) : given
  }

  /**
   * Reads what the handler left unread: the Worker is still sending it, and would fail for want of a reader.
   * @param ms how long; what comes later, or behind `bytes`, is cut off
   * @returns whether the whole body has been read
   */
  async rest(ms: number, bytes: number): Promise<boolean> {
    await within(ms, this.readOn(bytes)).catch(() => {})
    if (!this.ended) void this.reader?.cancel().catch(() => {})
    return this.ended
  }

  /** SHA-256 as base64url, or '' without a hash; settles behind the last byte. */
  async digest(): Promise<string> {
    return this.hash ? base64url(new Uint8Array(await this.hash.digest)) : ''
  }

  private stream(): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>(
      {
        // One that is cancelled is read on by `rest`.
        pull: async (controller) => {
          const chunk = await this.next()
          if (chunk) controller.enqueue(chunk)
          else controller.close()
        },
      },
      { highWaterMark: 0 },
    )
  }

  private async readOn(bytes: number): Promise<void> {
    for (let left = bytes; left >= 0; ) {
      const chunk = await this.next()
      if (!chunk) return
      left -= chunk.length
    }
  }

  private next(): Promise<Uint8Array | undefined> {
    // A body of the platform's takes one read at a time, and the handler may have left one waiting.
    const read = this.reading.then(() => this.read())
    this.reading = read.catch(() => {})
    return read
  }

  private async read(): Promise<Uint8Array | undefined> {
    if (this.ended || !this.reader) return undefined
    const { done, value } = await this.reader.read()
    if (done) await this.end()
    else await this.hashing?.write(value)
    return value
  }

  private async end(): Promise<void> {
    if (this.ended) return
    this.ended = true
    await this.hashing?.close()
  }
}
