import { describe, ParisError } from '../errors.ts'

/** Exact counts of bytes from a stream of arbitrary chunks. */
export class ByteReader {
  private readonly reader: ReadableStreamDefaultReader<Uint8Array>
  private rest = new Uint8Array(0)

  constructor(
    stream: ReadableStream<Uint8Array>,
    private readonly where: string,
  ) {
    this.reader = stream.getReader()
  }

  /** Exactly `count` bytes in memory of their own. @throws ParisError `snapshot_corrupt` where the stream ends early */
  async take(count: number): Promise<Uint8Array<ArrayBuffer>> {
    const out = new Uint8Array(count)
    let filled = 0
    while (filled < count) {
      if (this.rest.length === 0 && !(await this.more())) throw this.wrong(`an end ${count - filled} bytes early`)
      const part = this.rest.subarray(0, count - filled)
      out.set(part, filled)
      filled += part.length
      this.rest = this.rest.subarray(part.length)
    }
    return out
  }

  /** @throws ParisError `snapshot_corrupt` where bytes are left */
  async end(): Promise<void> {
    if (this.rest.length > 0 || (await this.more())) throw this.wrong('bytes behind its end')
  }

  async cancel(reason: unknown): Promise<void> {
    await this.reader.cancel(reason).catch(() => {})
  }

  private async more(): Promise<boolean> {
    for (;;) {
      const { done, value } = await this.reader.read().catch((cause) => {
        const reason = cause instanceof Error ? cause.message : describe(cause)
        throw cause instanceof ParisError ? cause : this.wrong(`a source that failed: ${reason}`, cause)
      })
      if (done) return false
      if (!(value instanceof Uint8Array)) throw this.wrong('chunks that are not Uint8Array')
      if (value.length === 0) continue
      this.rest = value as Uint8Array<ArrayBuffer>
      return true
    }
  }

  private wrong(got: string, cause?: unknown): ParisError {
    const fix = 'Copy or download the file again.'
    return new ParisError('snapshot_corrupt', {
      where: this.where,
      got,
      want: 'the bytes that its header announces',
      fix,
      cause,
    })
  }
}
