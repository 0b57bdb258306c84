import type { Context } from 'hono'
import { configOptions, parseConfig, type SessionOptions } from '../config.ts'
import { type Answer, answerResponse } from './answer.ts'
import { withBody } from './body.ts'
import { orFired, withDeadline } from './call.ts'
import type { HttpEnv } from './calls.ts'
import { parseJson } from './json.ts'
import { lengthsOf } from './ops.ts'
import { printOf } from './print.ts'
import { Refusal } from './problem.ts'
import type { Service } from './service.ts'
import { isoTime } from './session-view.ts'
import type { Entry } from './sessions.ts'

/** Bytes of a JSON body. */
const MOST_JSON = 64 * 1024

/** `POST /v1/sessions`. */
export async function createSession(c: Context<HttpEnv>, key: string | undefined): Promise<Response> {
  const { tenant, service } = c.var
  const { admission, host, limits } = service
  const request = c.req.raw
  const answer = await admission.request(() =>
    withDeadline(limits.deadline, request.signal, (signal) =>
      withBody(request, MOST_JSON, admission, signal, async (bytes) => {
        const create = async () => {
          const { ttl: asked, ...options } = parseJson(bytes, FIX) as unknown as SessionOptions & { ttl?: unknown }
          const ttl = service.ttlOf(asked)
          parseConfig(options, 'POST /v1/sessions')
          const engine = await orFired(signal, host.ready())
          const entry = await service.openSession(
            request,
            { tenant, ttl, bytes: service.bytesOf(engine, options) },
            engine,
            () => engine.createSession(options, { signal }),
            (id, record) => service.options.journal?.created(id, record),
          )
          return openedAnswer(service, entry)
        }
        const print = key === undefined ? '' : printOf(request, bytes)
        return service.tenantReplays(tenant).once(key, print, create, { signal, stands: stillOpen(service, tenant) })
      }),
    ),
  )
  return answerResponse(answer)
}

/** `POST /v1/sessions/:id/fork`. */
export async function forkSession(c: Context<HttpEnv>, id: string, key: string | undefined): Promise<Response> {
  const { tenant, service } = c.var
  const { admission, limits, sessions } = service
  const request = c.req.raw
  const entry = sessions.get(id, tenant)
  checkRestorable(service)
  const fork = (signal: AbortSignal) => async () => {
    const { engine, ttl, session } = entry
    const copy = await service.openSession(
      request,
      { tenant, ttl, bytes: service.bytesOf(engine, session.config) },
      engine,
      () => sessions.inOrder(entry, signal, () => session.fork()),
      (newId, record, made) => service.options.journal?.restored?.(newId, record, made.snapshot()),
    )
    return openedAnswer(service, copy)
  }
  const answer = await admission.request(() =>
    sessions.use(entry, () =>
      withDeadline(limits.deadline, request.signal, (signal) => {
        const print = key === undefined ? '' : printOf(request, new Uint8Array())
        return entry.replays.once(key, print, fork(signal), { signal, stands: stillOpen(service, tenant) })
      }),
    ),
  )
  return answerResponse(answer)
}

/** Whether the session that an earlier answer opened is there: without it that answer helps nobody. */
export function stillOpen({ sessions }: Service, tenant: string): (answer: Answer) => boolean {
  return ({ said }) => sessions.serves(String(said.id), tenant)
}

/** What an opened session is answered with. */
export function openedAnswer(service: Service, entry: Entry): Answer {
  const { id, ttl, session, engine, expires } = entry
  return {
    status: 201,
    said: {
      id,
      epoch: service.host.epoch,
      ttl,
      expires: isoTime(expires),
      backend: engine.info.backend,
      bytes: service.bytesOf(engine, session.config),
      limits: service.limits,
      lengths: lengthsOf(entry),
      config: configOptions(session.config),
    },
  }
}

/** @throws ParisError `not_supported` where the host stores sessions but no snapshots */
export function checkRestorable({ options }: Service): void {
  if (!options.journal || options.journal.restored) return
  throw new Refusal('not_supported', {
    where: 'this host',
    got: 'a session made of a snapshot',
    want: 'a session that begins empty',
    fix: 'Open a session and append.',
  })
}

const FIX = 'Send the shape, capacity, store, policy and ttl as one JSON object.'
