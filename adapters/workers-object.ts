import kernels from '../build/kernels.wasm'
import { createApp, type ParisApp } from '../sdk/http/app.ts'
import type { Limits } from '../sdk/http/limits.ts'
import type { Journal } from '../sdk/http/options.ts'
import { badBody, problemResponse, Refusal } from '../sdk/http/problem.ts'
import { mismatch } from '../sdk/http/replays.ts'
import { createWasmBackend, ParisError } from '../sdk/index.ts'
import { parseTokens, splitTokens } from './tokens.ts'
import { PassingBody } from './workers-body.ts'
import { ObjectEngine } from './workers-isolate.ts'
import { SessionLog } from './workers-log.ts'
import type { ObjectNamespace, ObjectState } from './workers-platform.ts'
import { reload } from './workers-reload.ts'
import { upgradeWebSocket } from './workers-socket.ts'

/** Bindings and variables of the Worker. */
export interface WorkerEnv {
  readonly SESSIONS: ObjectNamespace
  /** `token=tenant,token=tenant`: a secret. */
  readonly PARISKV_TOKENS?: string
  readonly PARISKV_METRICS_TOKEN?: string
  /** MiB of Wasm memory of one object, and of all sessions in one isolate. Default 72: it has 128 in all, for everything. */
  readonly PARISKV_MEMORY_MIB?: string | number
}

/** The header by which the Worker tells an object the id of the session that it shall open. */
export const ID_HEADER = 'x-pariskv-session'

/** The header by which it tells an object that its session is to be a fork: of which one. */
export const FORK_HEADER = 'x-pariskv-fork'

const MIB = 2 ** 20
const MOST_BODY = 8 * MIB
/** Ms. */
const LONGEST_RESTORE = 900_000

interface Opened {
  readonly app: ParisApp
  readonly engine: ObjectEngine
}

/** One session: its engine, its handler, and its log in this object's SQLite. */
export class SessionObject {
  private readonly log: SessionLog
  private opening: Promise<Opened> | undefined
  /** When the session was last noted as used, in ms. */
  private noted = 0
  private ttl = 0

  constructor(
    private readonly state: ObjectState,
    private readonly env: WorkerEnv,
  ) {
    this.log = new SessionLog(state.storage)
  }

  /** Answers what the Worker passes on, from memory; loaded from storage first where it is not there. */
  async fetch(request: Request): Promise<Response> {
    const opens = request.headers.has(ID_HEADER)
    const body = new PassingBody(request, opens && isKeyed(request))
    try {
      this.opening ??= this.open()
      const { app } = await this.opening
      if (opens) return await this.begin(app, body)
      const response = await app.fetch(body.request)
      this.noteUse(Date.now())
      return response
    } catch (error) {
      return problemResponse(error)
    } finally {
      await body.rest(1_000, MOST_BODY)
    }
  }

  /** Opens the session, or tells again that it was: only a retry comes to an object that has one. */
  private async begin(app: ParisApp, body: PassingBody): Promise<Response> {
    const { request } = body
    const told = this.log.answer()
    if (told) {
      if (told.print === (await printOf(body))) return new Response(told.answer, { status: 201, headers: REPLAYED })
      return problemResponse(mismatch())
    }
    const response = await app.fetch(request)
    if (response.status === 201 && isKeyed(request)) {
      const answer = await response.clone().text()
      this.log.keepAnswer({ answer, print: await printOf(body) })
    }
    return response
  }

  /** Takes a session away that nobody has used for its time to live; the alarm is set again for any other. */
  async alarm(): Promise<void> {
    await (await this.opening)?.app.sweep()
    // Gone where the session was swept.
    const app = this.opening
    const stored = this.log.stored()
    const now = Date.now()
    // What is in memory still has been used, if only over a socket: that is noted here, and on the safe side.
    if (stored && app) this.log.touch(now)
    const expires = stored ? (app ? now : stored.used) + lifetime(stored.record.ttl) : 0
    if (now < expires) await this.state.storage.setAlarm(expires)
    else await this.clear()
  }

  /** @throws ParisError `out_of_memory`, `internal` */
  private async open(): Promise<Opened> {
    // What is thrown in there would end the object.
    const [opened] = await this.state.blockConcurrencyWhile(() => Promise.allSettled([this.load()]))
    if (opened.status === 'fulfilled') return opened.value
    this.opening = undefined
    throw unopened(opened.reason)
  }

  private async load(): Promise<Opened> {
    const limits = objectLimits(this.env)
    const backend = createWasmBackend(kernels, { maxBytes: limits.bytes })
    const engine = new ObjectEngine(backend, this.state.id.toString(), limits.bytes)
    const app = createApp({
      engine,
      auth: { tokens: parseTokens(splitTokens(this.env.PARISKV_TOKENS)) },
      limits,
      journal: this.journal(),
      newId: (request) => request.headers.get(ID_HEADER) ?? '',
      upgradeWebSocket,
      sweepEvery: 0,
    })
    await app.ready()
    const stored = this.log.stored()
    if (!stored) return { app, engine }
    const { record, id, used } = stored
    if (Date.now() >= used + lifetime(record.ttl)) {
      await this.clear()
      return { app, engine }
    }
    try {
      const session = await reload(engine, stored, this.log)
      await app.adopt(id, { tenant: record.tenant, session, ttl: record.ttl })
    } catch (error) {
      engine.release()
      await engine.dispose()
      throw error
    }
    this.noted = used
    this.ttl = record.ttl
    return { app, engine }
  }

  private journal(): Journal {
    const begun = async (ttl: number, now: number) => {
      this.noted = now
      this.ttl = ttl
      await this.state.storage.setAlarm(now + lifetime(ttl))
    }
    return {
      created: async (id, record) => {
        await begun(record.ttl, Date.now())
        this.log.create(id, record, Date.now())
      },
      restored: async (id, record, snapshot) => {
        // Clears what an object that ends in the middle of it leaves behind.
        await this.state.storage.setAlarm(Date.now() + LONGEST_RESTORE)
        await this.log.begin(snapshot)
        await begun(record.ttl, Date.now())
        this.log.create(id, record, Date.now())
      },
      appended: async (_id, layer, offset, _tokens, { keys, values }) => {
        this.log.append(layer, offset, keys, values)
      },
      truncated: async (_id, length) => this.log.truncate(length),
      removed: async () => {
        const before = await this.opening
        await this.clear()
        // Whoever comes next finds an object that knows nothing, and the memory of this engine is collected.
        this.opening = undefined
        before?.engine.release()
      },
    }
  }

  /** A read would cost a write each if it were noted each time. */
  private noteUse(now: number): void {
    if (this.ttl === 0 || now - this.noted < grace(this.ttl)) return
    this.noted = now
    this.log.touch(now)
  }

  private async clear(): Promise<void> {
    this.ttl = 0
    await this.state.storage.deleteAlarm()
    await this.log.clear()
  }
}

/** Limits of an object's handler: one session, in the memory of one isolate. */
export function objectLimits(env: WorkerEnv): Partial<Limits> & { readonly bytes: number } {
  const bytes = Number(env.PARISKV_MEMORY_MIB ?? 72) * MIB
  return {
    ...{ sessions: 1, sessionsPerTenant: 1, bytes, bytesPerTenant: bytes, streams: 1 },
    ...{ body: MOST_BODY, buffered: 2 * MOST_BODY, snapshot: 2 * bytes, replays: 16, replayBytes: MIB },
  }
}

/** Ms by which a stored time of last use may lag behind. */
function grace(ttl: number): number {
  return Math.min(60_000, ttl * 100)
}

/** Ms behind the stored time of last use at which a session has certainly expired. */
function lifetime(ttl: number): number {
  return ttl * 1000 + grace(ttl)
}

const REPLAYED = { 'content-type': 'application/json', 'cache-control': 'no-store', 'idempotent-replayed': 'true' }

/** Whether a retry may come: under a key, or to the object of a fork. */
function isKeyed({ headers }: Request): boolean {
  return headers.has('idempotency-key') || headers.has(FORK_HEADER)
}

/** What the request says, all of it. @throws ParisError `bad_body` */
async function printOf(body: PassingBody): Promise<string> {
  const { headers, url } = body.request
  const forked = headers.get(FORK_HEADER)
  // Another one would have another object; what the session held then does not matter.
  if (forked !== null) return forked
  if (await body.rest(LONGEST_RESTORE, Number.POSITIVE_INFINITY)) return new URL(url).search + (await body.digest())
  throw badBody('a body that broke off', 'all of it', 'Send it again.')
}

function unopened(cause: unknown): ParisError {
  if (cause instanceof ParisError && cause.code === 'out_of_memory') return cause
  return new Refusal('internal', {
    where: 'the session',
    got: 'a log that cannot be read',
    want: 'one that tells the session',
    fix: 'Open another session and append again.',
    cause,
  })
}
