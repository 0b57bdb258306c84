import kernels from '../build/kernels.wasm'
import { createApp, type ParisApp } from '../sdk/http/app.ts'
import type { Limits } from '../sdk/http/limits.ts'
import type { Journal } from '../sdk/http/options.ts'
import { parseFrame, takeTensors } from '../sdk/http/tensors.ts'
import { createWasmBackend, Engine, type Session } from '../sdk/index.ts'
import { parseTokens, splitTokens } from './tokens.ts'
import { type LogEntry, SessionLog, type StoredSession } from './workers-log.ts'
import type { ObjectNamespace, ObjectState } from './workers-platform.ts'
import { upgradeWebSocket } from './workers-socket.ts'

/** Bindings and variables of the Worker. */
export interface WorkerEnv {
  readonly SESSIONS: ObjectNamespace
  /** `token=tenant,token=tenant`: a secret. */
  readonly PARISKV_TOKENS?: string
  readonly PARISKV_METRICS_TOKEN?: string
  /** MiB of Wasm memory of one object. Default 72: an isolate has 128 in all, for everything. */
  readonly PARISKV_MEMORY_MIB?: string | number
}

/** The header by which the Worker tells an object the id of the session that it shall open. */
export const ID_HEADER = 'x-pariskv-session'

const MIB = 2 ** 20
const MOST_BODY = 8 * MIB
/** Ms. */
const LONGEST_RESTORE = 900_000

/** One session: its engine, its handler, and its log in this object's SQLite. */
export class SessionObject {
  private readonly log: SessionLog
  private opening: Promise<ParisApp> | undefined
  /** When the session was last noted as used, in ms. */
  private noted = 0
  private ttl = 0
  /** Whether the log knows the store. */
  private settled = false

  constructor(
    private readonly state: ObjectState,
    private readonly env: WorkerEnv,
  ) {
    this.log = new SessionLog(state.storage)
  }

  /** Answers what the Worker passes on, from memory; loaded from storage first where it is not there. */
  async fetch(request: Request): Promise<Response> {
    this.opening ??= this.state.blockConcurrencyWhile(() => this.open())
    const app = await this.opening
    if (request.headers.has(ID_HEADER)) return this.begin(app, request)
    const response = await app.fetch(request)
    await drain(request)
    this.noteUse(Date.now())
    return response
  }

  /** Opens the session, or tells again that it was: only a retry comes to an object that has one. */
  private async begin(app: ParisApp, request: Request): Promise<Response> {
    const told = this.log.answer()
    const response = told && isRestore(request) ? undefined : await app.fetch(request)
    await drain(request)
    if (told && (!response || response.status === 409 || response.status === 429))
      return new Response(told, { status: 201, headers: REPLAYED })
    if (response!.status === 201) this.log.keepAnswer(await response!.clone().text())
    return response!
  }

  /** Takes a session away that nobody has used for its time to live; the alarm is set again for any other. */
  async alarm(): Promise<void> {
    const app = await this.opening
    await app?.sweep()
    const stored = this.log.stored()
    const now = Date.now()
    // What is in memory still has been used, if only over a socket: that is noted here, and on the safe side.
    if (stored && app) this.log.touch(now)
    const expires = stored ? (app ? now : stored.used) + lifetime(stored.record.ttl) : 0
    if (now < expires) await this.state.storage.setAlarm(expires)
    else await this.clear()
  }

  private async open(): Promise<ParisApp> {
    const limits = objectLimits(this.env)
    const engine = new Engine(createWasmBackend(kernels, { maxBytes: limits.bytes }))
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
    if (!stored) return app
    const session = await reload(engine, stored, this.log)
    await app.adopt(stored.id, { tenant: stored.record.tenant, session, ttl: stored.record.ttl })
    this.noted = stored.used
    this.ttl = stored.record.ttl
    return app
  }

  private journal(): Journal {
    const begun = async (ttl: number, now: number) => {
      this.noted = now
      this.ttl = ttl
      await this.state.storage.setAlarm(now + lifetime(ttl))
    }
    return {
      created: async (id, record) => {
        const now = Date.now()
        this.log.create(id, record, now)
        await begun(record.ttl, now)
      },
      restored: async (id, record, snapshot) => {
        // Clears what an object that ends in the middle of it leaves behind.
        await this.state.storage.setAlarm(Date.now() + LONGEST_RESTORE)
        await this.log.begin(snapshot)
        this.log.create(id, record, Date.now())
        await begun(record.ttl, Date.now())
      },
      appended: async (_id, layer, offset, _tokens, { keys, values }) => {
        // The first rows decide the store of a session that named none, and go on deciding when they are truncated.
        if (!this.settled) this.log.settleStore('data' in keys ? keys.dtype : 'f32')
        this.settled = true
        this.log.append(layer, offset, keys, values)
      },
      truncated: async (_id, length) => this.log.truncate(length),
      removed: async () => this.clear(),
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
    await this.state.storage.deleteAll()
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

/**
 * Reads what the handler refused unread: the Worker is still sending it, and would fail for want of a reader. More than
 * a body may have is cut off.
 */
async function drain({ body, bodyUsed }: Request): Promise<void> {
  if (!body || bodyUsed) return
  const reader = body.getReader()
  let left = MOST_BODY
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    left -= part.value.length
    if (left < 0) return reader.cancel()
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

function isRestore({ url }: Request): boolean {
  return new URL(url).pathname.endsWith(':restore')
}

/** The session as its log tells it. */
async function reload(engine: Engine, { record }: StoredSession, log: SessionLog): Promise<Session> {
  const snapshot = log.snapshot()
  const session = snapshot ? await engine.restore(snapshot) : await engine.createSession(record.options)
  for (const entry of log.entries()) await replay(session, entry)
  return session
}

async function replay(session: Session, entry: LogEntry): Promise<void> {
  if (entry.kind === 'truncate') return session.truncate(entry.length)
  const { inputs } = takeTensors(parseFrame(entry.frame), { keys: ['T'], values: ['T'] })
  await session.append(entry.layer, inputs)
}
