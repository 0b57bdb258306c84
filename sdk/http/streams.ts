import type { Context } from 'hono'
import { parseConfig, type SessionOptions } from '../config.ts'
import { ParisError } from '../errors.ts'
import { headerBytes, parseHeader } from '../safetensors.ts'
import { placementOf } from '../session/placement.ts'
import { answerResponse } from './answer.ts'
import { Gathered, limited, refuseEncoded, tooLarge } from './body.ts'
import { orFired, throwIfFired, withDeadline } from './call.ts'
import type { HttpEnv } from './calls.ts'
import { checkRestorable, openedAnswer, stillOpen } from './open.ts'
import { printOf } from './print.ts'
import { badBody, notFound } from './problem.ts'
import type { Service } from './service.ts'
import type { Entry } from './sessions.ts'
import { SAFETENSORS } from './tensors.ts'

/** `GET /v1/sessions/:id/snapshot`: a refusal before the first byte is a problem, one behind it breaks the stream. */
export async function snapshotResponse(service: Service, entry: Entry, request: Request): Promise<Response> {
  const { admission, limits, sessions } = service
  // Nobody would read the stream that a HEAD begins.
  if (request.method !== 'GET') throw notFound()
  const release = admission.stream()
  return new Promise<Response>((answer, refuse) => {
    const serve = (signal: AbortSignal) =>
      service.onEngine(entry.engine, async () => {
        const stream = await sessions.inOrder(entry, signal, async () => entry.session.snapshot({ signal }))
        const reader = stream.getReader()
        const first = await orFired(signal, reader.read())
        const { body, ended } = watched(reader, first.value, signal)
        answer(new Response(body, { headers: { 'content-type': SAFETENSORS, 'cache-control': 'no-store' } }))
        await ended
      })
    admission
      .request(() => sessions.use(entry, () => withDeadline(limits.streamDeadline, request.signal, serve)))
      .catch(refuse)
      .finally(release)
  })
}

/** The rest of a stream behind its first chunk, and when it was read, cancelled or broke. */
function watched(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  first: Uint8Array | undefined,
  signal: AbortSignal,
): { body: ReadableStream<Uint8Array>; ended: Promise<void> } {
  let body: ReadableStream<Uint8Array> | undefined
  const ended = new Promise<void>((resolve, reject) => {
    const stop = (controller: ReadableStreamDefaultController<Uint8Array>, error: unknown) => {
      void reader.cancel(error).catch(() => {})
      controller.error(error)
      reject(error)
    }
    body = new ReadableStream<Uint8Array>({
      start(controller) {
        if (first) controller.enqueue(first)
        signal.addEventListener('abort', () => stop(controller, signal.reason), { once: true })
      },
      async pull(controller) {
        try {
          const { done, value } = await reader.read()
          if (!done) return controller.enqueue(value)
          controller.close()
          resolve()
        } catch (error) {
          stop(controller, error)
        }
      },
      async cancel(reason) {
        resolve()
        await reader.cancel(reason)
      },
    })
  })
  ended.catch(() => {})
  return { body: body as ReadableStream<Uint8Array>, ended }
}

/**
 * `POST /v1/sessions:restore`: its bytes are reserved from its header, before anything of it is taken in. The header has
 * the digest of the whole, so that it alone says under an Idempotency-Key what is restored.
 */
export async function restoreSession(
  c: Context<HttpEnv>,
  askedTtl: number | undefined,
  key: string | undefined,
): Promise<Response> {
  const { tenant, service } = c.var
  const { admission, host, limits } = service
  const request = c.req.raw
  checkRestorable(service)
  refuseEncoded(request)
  const ttl = service.ttlOf(askedTtl)
  if (Number(request.headers.get('content-length') ?? 0) > limits.snapshot) throw tooLarge('more', limits.snapshot)
  if (!request.body) throw badBody('no body', 'a snapshot', 'Send the bytes of GET …/snapshot.')
  const source = request.body
  const release = admission.stream()
  const held = admission.hold()
  try {
    const answer = await admission.request(() =>
      withDeadline(limits.streamDeadline, request.signal, async (signal) => {
        const engine = await orFired(signal, host.ready())
        const { options, header, whole } = await peek(limited(source, limits.snapshot, signal), held.add)
        const restore = async () => {
          throwIfFired(signal)
          const bytes = service.bytesOf(engine, options)
          const entry = await service.openSession(
            request,
            { tenant, ttl, bytes },
            engine,
            () => engine.restore(whole, { signal, maxBytes: bytes, placement: placementOf(options.policy) }),
            (id, record, session) => service.options.journal?.restored?.(id, record, session.snapshot()),
          )
          return openedAnswer(service, entry)
        }
        const print = key === undefined ? '' : printOf(request, header)
        try {
          return await service
            .tenantReplays(tenant)
            .once(key, print, restore, { signal, stands: stillOpen(service, tenant) })
        } finally {
          // Nobody reads what was refused or answered behind its header; the engine cancels what it has begun itself.
          if (!whole.locked) void whole.cancel().catch(() => {})
        }
      }),
    )
    return answerResponse(answer)
  } finally {
    held.release()
    release()
  }
}

const MOST_HEADER = 2 ** 22

/**
 * The header of a snapshot and the configuration in it, and the same bytes again from the start.
 * @param count is told of the bytes as they are taken in, and may refuse them
 */
async function peek(stream: ReadableStream<Uint8Array>, count: (bytes: number) => void) {
  const reader = stream.getReader()
  const gathered = new Gathered(8 + MOST_HEADER)
  try {
    const upTo = async (bytes: number) => {
      while (gathered.length < bytes) {
        const { done, value } = await reader.read()
        if (done) break
        // What a chunk has beyond the header goes straight on.
        count(Math.min(value.length, bytes - gathered.length))
        gathered.add(value as Uint8Array<ArrayBuffer>)
      }
      return gathered.bytes()
    }
    const size = headerBytes((await upTo(8)).subarray(0, 8), MOST_HEADER, 'the body')
    const head = await upTo(8 + size)
    const header = head.subarray(8, 8 + size)
    const options = snapshotOptions(parseHeader(header, 'the body').metadata)
    return { options, header, whole: behind(head, reader) }
  } catch (error) {
    void reader.cancel(error).catch(() => {})
    throw error
  }
}

/** @throws ParisError `snapshot_corrupt` */
function snapshotOptions(metadata: ReadonlyMap<string, string>): SessionOptions {
  try {
    const options = JSON.parse(metadata.get('config') ?? '') as SessionOptions
    const store = metadata.get('store') as SessionOptions['store'] | ''
    const whole = store ? { ...options, store } : options
    parseConfig(whole, 'the body')
    return whole
  } catch (cause) {
    throw new ParisError('snapshot_corrupt', {
      where: 'the body',
      got: 'metadata that describes no session',
      want: 'config and store as a snapshot has them',
      fix: 'Send the bytes of GET …/snapshot.',
      cause,
    })
  }
}

function behind(head: Uint8Array, reader: ReadableStreamDefaultReader<Uint8Array>): ReadableStream<Uint8Array> {
  return new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(head),
    async pull(controller) {
      const { done, value } = await reader.read()
      if (done) controller.close()
      else controller.enqueue(value)
    },
    cancel: (reason) => reader.cancel(reason),
  })
}
