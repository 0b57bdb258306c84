import type { Admission } from './admission.ts'
import { orFired, throwIfFired } from './call.ts'
import type { BodySource } from './options.ts'
import { badBody, Refusal } from './problem.ts'

/**
 * A whole body, counted as it arrives: what it says of its own length is used only to refuse it sooner.
 * @param limit bytes
 * @param use is given the bytes, which count as buffered until it ends
 * @param source where the host reads them, instead of `request.body`
 * @throws ParisError `unsupported_media` for an encoded body, `too_large`, `too_many`, `bad_body` for one that breaks off
 */
export async function withBody<T>(
  request: Request,
  limit: number,
  admission: Admission,
  signal: AbortSignal,
  use: (bytes: Uint8Array<ArrayBuffer>) => Promise<T>,
  source: BodySource = (take, fired) => readStream(request, take, fired),
): Promise<T> {
  refuseEncoded(request)
  const said = saidLength(request)
  if (said !== undefined && said > limit) throw tooLarge(`${said} bytes`, limit)
  const held = admission.hold()
  try {
    return await use(await readAll(source, limit, held.add, signal))
  } finally {
    held.release()
  }
}

async function readAll(source: BodySource, limit: number, count: (bytes: number) => void, signal: AbortSignal) {
  const gathered = new Gathered(limit)
  const take = (chunk: Uint8Array<ArrayBuffer>) => {
    if (gathered.length + chunk.length > limit) throw tooLarge('more bytes', limit)
    count(chunk.length)
    gathered.add(chunk)
  }
  try {
    await source(take, signal)
  } catch (cause) {
    throwIfFired(signal)
    throw cause instanceof Refusal ? cause : brokenOff(cause)
  }
  return gathered.bytes()
}

/** Bytes as they come, in one buffer that doubles: a list of one-byte chunks would take a hundred times its bytes. */
export class Gathered {
  private buffer: Uint8Array<ArrayBuffer> = new Uint8Array(0)
  /** Bytes so far. */
  length = 0

  /** @param most bytes that the buffer grows to unless more are added */
  constructor(private readonly most: number) {}

  /** A first chunk is kept as it is, any other is copied. */
  add(chunk: Uint8Array<ArrayBuffer>): void {
    const filled = this.length
    this.length += chunk.length
    if (filled === 0) {
      this.buffer = chunk
      return
    }
    if (this.length > this.buffer.length) {
      const grown = new Uint8Array(Math.max(this.length, Math.min(this.most, 2 * this.buffer.length)))
      grown.set(this.buffer.subarray(0, filled))
      this.buffer = grown
    }
    this.buffer.set(chunk, filled)
  }

  /** All of them, not copied. */
  bytes(): Uint8Array<ArrayBuffer> {
    return this.buffer.subarray(0, this.length)
  }
}

/** What every runtime has. */
async function readStream(
  request: Request,
  take: (chunk: Uint8Array<ArrayBuffer>) => void,
  signal: AbortSignal,
): Promise<void> {
  const reader = request.body?.getReader() as ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>> | undefined
  if (!reader) return
  try {
    for (let part = await orFired(signal, reader.read()); !part.done; part = await orFired(signal, reader.read()))
      take(part.value)
  } catch (error) {
    void reader.cancel().catch(() => {})
    throw error
  }
}

function brokenOff(cause: unknown): Refusal {
  return badBody('a body that broke off', 'all of it', 'Send it again.', cause)
}

/** A stream that fails with `too_large` behind `limit` bytes, and when the signal fires. */
export function limited(
  stream: ReadableStream<Uint8Array>,
  limit: number,
  signal: AbortSignal,
): ReadableStream<Uint8Array> {
  const reader = stream.getReader()
  let total = 0
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const { done, value } = await orFired(signal, reader.read())
        if (done) return controller.close()
        total += value.length
        if (total > limit) throw tooLarge('more bytes', limit)
        controller.enqueue(value)
      } catch (error) {
        void reader.cancel(error).catch(() => {})
        throw error
      }
    },
    cancel: (reason) => reader.cancel(reason),
  })
}

/** @throws ParisError `unsupported_media` */
export function refuseEncoded(request: Request): void {
  const encoding = request.headers.get('content-encoding')
  if (encoding === null || encoding.toLowerCase() === 'identity') return
  throw new Refusal('unsupported_media', {
    where: 'Content-Encoding',
    got: JSON.stringify(encoding.slice(0, 40)),
    want: 'no encoding',
    fix: 'Send the bytes as they are.',
  })
}

/** @throws ParisError `bad_body` where the header is no number */
function saidLength(request: Request): number | undefined {
  const said = request.headers.get('content-length')
  if (said === null) return undefined
  if (/^\d{1,15}$/.test(said)) return Number(said)
  throw badBody('a Content-Length that is no number', 'bytes', 'Let the HTTP library set it.')
}

export function tooLarge(got: string, limit: number): Refusal {
  return new Refusal('too_large', {
    where: 'the body',
    got,
    want: `at most ${limit} bytes`,
    fix: 'Cut a prompt into several appends; GET /v1/info tells the limit.',
  })
}

/** Chunks as one. */
export function joined(chunks: readonly Uint8Array[], total: number): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(total)
  let at = 0
  for (const chunk of chunks) {
    out.set(chunk, at)
    at += chunk.length
  }
  return out
}
