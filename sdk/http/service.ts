import { configOptions, type SessionConfig, type SessionOptions } from '../config.ts'
import type { Engine } from '../engine.ts'
import { ParisError } from '../errors.ts'
import type { Session } from '../session/session.ts'
import { Admission } from './admission.ts'
import { Host } from './host.ts'
import { randomId } from './ids.ts'
import { DEFAULT_LIMITS, type Limits } from './limits.ts'
import { Metrics } from './metrics.ts'
import type { AppOptions, SessionRecord } from './options.ts'
import { Refusal } from './problem.ts'
import { ReplayPool, Replays } from './replays.ts'
import { type Entry, SessionTable } from './sessions.ts'

/** Everything one handler owns; routes and sockets are faces of it. */
export class Service {
  readonly limits: Limits
  readonly admission: Admission
  readonly host: Host
  readonly sessions: SessionTable
  readonly metrics = new Metrics()
  readonly replayPool: ReplayPool
  /** Of calls that belong to no session yet, by tenant. */
  private readonly replays = new Map<string, Replays>()
  private sweeping: ReturnType<typeof setInterval> | undefined
  /** Called when the server drains: sockets close. */
  readonly onDrain = new Set<() => void>()
  draining = false

  constructor(readonly options: AppOptions) {
    const given = Object.entries(options.limits ?? {}).filter(([, value]) => value !== undefined)
    this.limits = { ...DEFAULT_LIMITS, ...Object.fromEntries(given) }
    this.admission = new Admission(this.limits)
    this.replayPool = new ReplayPool(this.limits.replayBytesInAll)
    const removed = (id: string) => this.stored(() => options.journal?.removed(id))
    this.sessions = new SessionTable(this.limits, removed, this.replayPool)
    this.host = new Host(
      options.engine,
      (engine) => this.sessions.lose(engine),
      async (engine) => {
        for (const config of options.warm ?? []) await engine.warm(config)
      },
    )
  }

  /** Waits for the host's own store. @throws ParisError `not_stored` */
  async stored(write: () => Promise<void> | undefined): Promise<void> {
    try {
      await write()
    } catch (cause) {
      throw new Refusal(
        'not_stored',
        {
          where: "the host's store",
          got: 'a write that failed',
          want: 'a write that lasts',
          fix: 'The call was taken back; try again.',
          cause,
        },
        { retryAfter: 1 },
      )
    }
  }

  /** Runs what touches an engine; a lost device makes the host open another. */
  async onEngine<T>(engine: Engine, task: () => Promise<T>): Promise<T> {
    try {
      return await task()
    } catch (error) {
      if (error instanceof ParisError && error.code === 'device_lost') this.host.lost(engine)
      throw error
    }
  }

  /** @throws ParisError `not_ready` while the server drains */
  checkOpen(): void {
    if (!this.draining) return
    const parts = { got: 'a server that is being stopped', want: 'an open one', fix: 'Go to another host.' }
    throw new Refusal('not_ready', { where: 'the server', ...parts }, { retryAfter: 1 })
  }

  /** Seconds that a session may stay idle. @throws ParisError `bad_config` */
  ttlOf(asked: unknown): number {
    const { ttl, maxTtl } = this.limits
    if (asked === undefined) return ttl
    if (typeof asked === 'number' && Number.isInteger(asked) && asked >= 1 && asked <= maxTtl) return asked
    throw new Refusal('bad_config', {
      where: 'ttl',
      got: typeof asked === 'number' ? String(asked) : typeof asked,
      want: `a whole number of seconds from 1 to ${maxTtl}`,
      fix: 'Leave it out for the default; every request on the session starts it anew.',
    })
  }

  /** Replays for calls without a session. */
  tenantReplays(tenant: string): Replays {
    const replays = this.replays.get(tenant) ?? new Replays(this.limits, this.replayPool)
    this.replays.set(tenant, replays)
    return replays
  }

  /**
   * Reserves, opens and stores a session.
   * @param bytes what it will take, at most
   * @param open makes it
   * @param keep writes it into the host's store
   */
  async openSession(
    request: Request,
    { tenant, ttl, bytes }: { tenant: string; ttl: number; bytes: number },
    engine: Engine,
    open: () => Promise<Session>,
    keep: (id: string, record: SessionRecord, session: Session) => Promise<void> | undefined,
  ): Promise<Entry> {
    await this.sessions.sweep()
    const release = this.admission.reserve(tenant, bytes)
    let session: Session | undefined
    let stored: string | undefined
    try {
      const opened = await this.onEngine(engine, open)
      session = opened
      const id = this.options.newId?.(request) ?? randomId()
      if (this.sessions.has(id)) throw idTaken('newId')
      await this.stored(() => keep(id, { tenant, ttl, options: configOptions(opened.config) }, opened))
      stored = id
      if (this.host.current !== engine) throw lostMeanwhile()
      return this.add({ id, tenant, session, engine, ttl, release })
    } catch (error) {
      await session?.dispose().catch(() => {})
      release()
      if (stored !== undefined) await this.forget(stored)
      throw error
    }
  }

  /** Takes what was written of a session that is not opened after all out of the host's store. */
  private async forget(id: string): Promise<void> {
    await this.stored(() => this.options.journal?.removed(id)).catch(() => {})
  }

  /** Puts a session that is there already under an id. */
  add(parts: Parameters<SessionTable['add']>[0]): Entry {
    const every = this.options.sweepEvery ?? 30_000
    if (this.sweeping === undefined && every > 0) {
      this.sweeping = setInterval(() => void this.sweep(), every)
      ;(this.sweeping as { unref?: () => void }).unref?.()
    }
    return this.sessions.add(parts)
  }

  /** Removes what has expired. */
  async sweep(): Promise<void> {
    await this.sessions.sweep()
    if (this.sessions.size > 0) return
    clearInterval(this.sweeping)
    this.sweeping = undefined
  }

  /** Bytes that a session of this configuration is counted as. */
  bytesOf(engine: Engine, config: SessionConfig | SessionOptions): number {
    return engine.estimate('shape' in config ? configOptions(config) : config).total
  }

  async dispose(): Promise<void> {
    this.draining = true
    clearInterval(this.sweeping)
    for (const close of this.onDrain) close()
    await this.sessions.clear()
    if (typeof this.options.engine === 'function') await this.host.dispose()
  }
}

/** @param where the id came from */
export function idTaken(where: string): Refusal {
  const parts = { got: 'an id that is taken', want: 'a fresh one', fix: 'Draw another id.' }
  return new Refusal('internal', { where, ...parts })
}

function lostMeanwhile(): ParisError {
  return new ParisError('device_lost', {
    where: 'POST /v1/sessions',
    got: 'a device that was lost meanwhile',
    want: 'a device that works',
    fix: 'Try again: the server opens another.',
  })
}
