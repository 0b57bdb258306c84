import { CallQueue } from '../calls.ts'
import type { Engine } from '../engine.ts'
import type { Session } from '../session/session.ts'
import { orFired, throwIfFired } from './call.ts'
import type { Limits } from './limits.ts'
import { notFound, Refusal, tooMany } from './problem.ts'
import { type ReplayPool, Replays } from './replays.ts'

/** A session that the handler serves. */
export interface Entry {
  readonly id: string
  readonly tenant: string
  readonly session: Session
  readonly engine: Engine
  /** Seconds that it may stay idle. */
  readonly ttl: number
  readonly queue: CallQueue
  readonly replays: Replays
  /** Gives back what was reserved for it. */
  readonly release: () => void
  /** Requests under way or waiting. */
  waiting: number
  /** Milliseconds of the clock at which it expires unless it is used. */
  expires: number
}

/** The sessions of one handler, by id. Those that are foreign or expired are as unknown as the others. */
export class SessionTable {
  private readonly entries = new Map<string, Entry>()
  /** Owners of sessions that were lost, the latest of them. */
  private readonly gone = new Map<string, string>()

  constructor(
    private readonly limits: Limits,
    private readonly onRemove: (id: string) => Promise<void>,
    private readonly pool: ReplayPool,
  ) {}

  get size(): number {
    return this.entries.size
  }

  [Symbol.iterator](): IterableIterator<Entry> {
    return this.entries.values()
  }

  add(parts: Pick<Entry, 'id' | 'tenant' | 'session' | 'engine' | 'ttl' | 'release'>): Entry {
    const entry: Entry = {
      ...parts,
      queue: new CallQueue(),
      replays: new Replays(this.limits, this.pool),
      waiting: 0,
      expires: Date.now() + parts.ttl * 1000,
    }
    this.entries.set(entry.id, entry)
    this.gone.delete(entry.id)
    return entry
  }

  has(id: string): boolean {
    return this.entries.has(id)
  }

  /** @throws ParisError `not_found`, or `session_lost` to its owner */
  get(id: string, tenant: string): Entry {
    const entry = this.entries.get(id)
    if (entry && isServed(entry, tenant)) return entry
    if (!entry && this.gone.get(id) === tenant) throw lostError()
    throw notFound()
  }

  /** Whether `get` would find it. */
  serves(id: string, tenant: string): boolean {
    const entry = this.entries.get(id)
    return entry !== undefined && isServed(entry, tenant)
  }

  /**
   * Counts a request on a session while it runs: what is used does not expire.
   * @throws ParisError `too_many`
   */
  async use<T>(entry: Entry, task: () => Promise<T>): Promise<T> {
    const { queuePerSession } = this.limits
    if (entry.waiting >= queuePerSession)
      throw tooMany('the session', `${entry.waiting} requests under way`, `at most ${queuePerSession}`)
    entry.waiting++
    try {
      return await task()
    } finally {
      entry.waiting--
      entry.expires = Date.now() + entry.ttl * 1000
    }
  }

  /** Runs a task in call order: a wait ends with the signal, what has begun ends by itself. */
  inOrder<T>(entry: Entry, signal: AbortSignal, task: () => Promise<T>): Promise<T> {
    let begun = false
    const result = entry.queue.run(async () => {
      throwIfFired(signal)
      if (this.entries.get(entry.id) !== entry)
        throw this.gone.get(entry.id) === entry.tenant ? lostError() : notFound()
      begun = true
      return task()
    })
    return orFired(signal, result).catch((error) => (begun ? result : Promise.reject(error)))
  }

  /** Forgets a session and frees it. The host's copy goes first: where that fails, the session stays. */
  async remove(entry: Entry): Promise<void> {
    await this.onRemove(entry.id)
    if (this.entries.get(entry.id) !== entry) return
    this.entries.delete(entry.id)
    await this.free(entry)
  }

  /** Removes what has been idle for too long. */
  async sweep(): Promise<void> {
    const now = Date.now()
    for (const entry of [...this.entries.values()])
      if (entry.waiting === 0 && entry.expires <= now) await this.remove(entry).catch(() => {})
  }

  /** Forgets every session of an engine that is gone; their owners are told so from now on. */
  lose(engine: Engine): void {
    for (const entry of [...this.entries.values()]) if (entry.engine === engine) this.loseOne(entry)
  }

  /** Forgets a session that can't go on, and tells its owner so from now on. @returns whether it was there */
  loseOne(entry: Entry): boolean {
    if (this.entries.get(entry.id) !== entry) return false
    this.entries.delete(entry.id)
    this.gone.set(entry.id, entry.tenant)
    void this.free(entry).catch(() => {})
    for (const id of this.gone.keys()) if (this.gone.size > 4096) this.gone.delete(id)
    return true
  }

  /** Frees all sessions, and leaves what a host keeps of them. */
  async clear(): Promise<void> {
    const open = [...this.entries.values()]
    this.entries.clear()
    await Promise.allSettled(open.map((entry) => this.free(entry)))
  }

  private async free(entry: Entry): Promise<void> {
    entry.replays.clear()
    try {
      await entry.session.dispose()
    } finally {
      entry.release()
    }
  }
}

function isServed({ tenant: owner, waiting, expires }: Entry, tenant: string): boolean {
  return owner === tenant && (waiting > 0 || Date.now() < expires)
}

/** What the owner of a session that was lost is told. */
export function lostError(cause?: unknown): Refusal {
  return new Refusal('session_lost', {
    where: 'the session',
    got: 'one that was lost with its device or with a call that could not be taken back',
    want: 'one that is open',
    fix: 'Open a new session and append again, or restore a snapshot.',
    cause,
  })
}
