import type { Admission } from './admission.ts'
import { orFired } from './call.ts'
import { badBody, Refusal } from './problem.ts'

/**
 * A whole body, counted as it arrives: what it says of its own length is used only to refuse it sooner.
 * @param limit bytes
 * @param use is given the bytes, which count as buffered until it ends
 * @throws ParisError `unsupported_media` for an encoded body, `too_large`, `too_many`, `bad_body` for one that breaks off
 */
export async function withBody<T>(
  request: Request,
  limit: number,
  admission: Admission,
  signal: AbortSignal,
  use: (bytes: Uint8Array<ArrayBuffer>) => Promise<T>,
): Promise<T> {
  refuseEncoded(request)
  const said = saidLength(request)
  if (said !== undefined && said > limit) throw tooLarge(`${said} bytes`, limit)
  const held = admission.hold()
  try {
    return await use(await readAll(request, limit, held.add, signal))
  } finally {
    held.release()
  }
}

async function readAll(request: Request, limit: number, count: (bytes: number) => void, signal: AbortSignal) {
  const reader = request.body?.getReader() as ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>> | undefined
  // One buffer that doubles: a list would let a body of one-byte chunks take a hundred times its bytes.
  let out = new Uint8Array(0)
  let total = 0
  while (reader) {
    let part: ReadableStreamReadResult<Uint8Array<ArrayBuffer>>
    try {
      part = await orFired(signal, reader.read())
    } catch (cause) {
      void reader.cancel().catch(() => {})
      if (cause instanceof Refusal) throw cause
      throw brokenOff(cause)
    }
    if (part.done) break
    const filled = total
    total += part.value.length
    try {
      if (total > limit) throw tooLarge('more bytes', limit)
      count(part.value.length)
    } catch (error) {
      void reader.cancel().catch(() => {})
      throw error
    }
    if (filled === 0) {
      out = part.value
      continue
    }
    if (total > out.length) {
      const grown = new Uint8Array(Math.min(limit, Math.max(total, 2 * out.length)))
      grown.set(out.subarray(0, filled))
      out = grown
    }
    out.set(part.value, filled)
  }
  return out.subarray(0, total)
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
