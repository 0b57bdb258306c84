import type { Backend } from './backend.ts'
import type { CallOptions } from './calls.ts'
import { describe, parseConfig, type SessionConfig, type SessionOptions } from './config.ts'
import { ParisError, throwIfAborted } from './errors.ts'
import type { TensorInput } from './input.ts'
import { appendAll, type KeysValues } from './session/append.ts'
import { type RestoreOptions, restoreState } from './session/restore.ts'
import { Session } from './session/session.ts'
import { Sessions } from './session/sessions.ts'
import { disposedError, estimateMemory, type MemoryUse, SessionState } from './session/state.ts'
import { type AttendResult, attendAll } from './session/steps.ts'

/** A backend that was tried and could not run, and why. */
export interface PassedOver {
  readonly name: string
  readonly reason: string
}

/** Which backend won and why the others did not. */
export interface EngineInfo {
  readonly backend: Backend['name']
  readonly description: string
  readonly passedOver: readonly PassedOver[]
}

/** One backend and the sessions on it. Made by `createEngine` of an adapter, or by hand on any backend. */
export class Engine {
  readonly info: EngineInfo
  private readonly sessions = new Sessions()
  /** Sessions on their way: created or restored, not yet there. */
  private readonly opening = new Set<Promise<unknown>>()
  private closing: Promise<void> | undefined

  constructor(
    private readonly backend: Backend,
    passedOver: readonly PassedOver[] = [],
  ) {
    this.info = { backend: backend.name, description: backend.description, passedOver }
  }

  /**
   * Opens an empty session. Memory is taken at once where `store` is given, otherwise at the first append.
   * @throws ParisError `bad_config`, `bad_head_dim`, `bad_k`, `out_of_memory`, `disposed`
   */
  async createSession(options: SessionOptions, call: Pick<CallOptions, 'signal'> = {}): Promise<Session> {
    this.checkOpen('engine.createSession')
    throwIfAborted(call?.signal, 'engine.createSession')
    const config = parseConfig(options)
    this.checkSize(config, 'createSession')
    return this.open(async () => {
      const state = new SessionState(this.backend, config)
      if (config.store) await this.orDispose(state, state.open(config.store))
      return state
    })
  }

  /**
   * Bytes that a session would hold, before anything is allocated. Without `store` it counts f32 rows, the most.
   * @throws ParisError as `createSession`
   */
  estimate(options: SessionOptions): MemoryUse {
    const config = parseConfig(options, 'estimate')
    this.checkSize(config, 'estimate')
    return estimateMemory(this.backend, config)
  }

  /**
   * Attention steps of many sessions and layers together; each result equals that of `session.attend` to the bit.
   * Refused as a whole. @param items queries [Hq, d] each
   */
  async attendBatch(
    items: ReadonlyArray<{ session: Session; layer: number; queries: TensorInput }>,
    options: CallOptions = {},
  ): Promise<AttendResult[]> {
    const calls = this.callsOf(items, 'engine.attendBatch').map(({ state, item }) => ({ state, ...item }))
    return attendAll(calls, 'engine.attendBatch', options ?? {})
  }

  /**
   * Appends to many sessions and layers together, ragged: each item as `session.append`. All of it or nothing.
   * @param items keys and values [H, tokens, d] each
   */
  async appendBatch(
    items: ReadonlyArray<KeysValues & { session: Session; layer: number }>,
    options: CallOptions = {},
  ): Promise<void> {
    const calls = this.callsOf(items, 'engine.appendBatch')
    return appendAll(
      calls.map(({ state, item }) => ({ state, layer: item.layer, input: item })),
      'engine.appendBatch',
      options ?? {},
    )
  }

  /**
   * Reads a snapshot of any backend into a new session.
   * @throws ParisError `snapshot_corrupt`, `snapshot_mismatch`, `out_of_memory`, `aborted`, `disposed`
   */
  async restore(stream: ReadableStream<Uint8Array>, options: RestoreOptions = {}): Promise<Session> {
    this.checkOpen('engine.restore')
    return this.open(() =>
      restoreState(this.backend, stream, options ?? {}, (config) => {
        this.checkSize(config, 'engine.restore', options?.maxBytes)
      }),
    )
  }

  /** Frees every session and the backend once the calls made before have ended. May be called again. */
  async dispose(): Promise<void> {
    this.closing ??= this.close()
    return this.closing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose()
  }

  private async close(): Promise<void> {
    await Promise.allSettled(this.opening)
    await this.sessions.disposeAll()
    this.backend.dispose()
  }

  private async open(make: () => Promise<SessionState>): Promise<Session> {
    const session = make().then((state) => this.adopt(state))
    this.opening.add(session)
    try {
      return await session
    } finally {
      this.opening.delete(session)
    }
  }

  /** The items of a batch with their states. @throws ParisError `bad_dtype`, `bad_config`, `disposed` */
  private callsOf<T extends { session: Session }>(items: readonly T[], where: string) {
    this.checkOpen(where)
    if (!Array.isArray(items)) throw badBatch('bad_dtype', where, describe(items), 'an array of items')
    return (items as readonly T[]).map((item) => {
      const state = (item?.session as Session | undefined)?.state
      if (state instanceof SessionState && state.backend === this.backend) return { state, item }
      const got = state ? 'a session of another engine' : describe(item?.session)
      throw badBatch('bad_config', where, got, 'a session of this engine in each item')
    })
  }

  private adopt(state: SessionState): Session {
    const session = new Session(state, (gone) => this.sessions.delete(gone))
    session.onFork((copy) => this.adopt(copy))
    this.sessions.add(session)
    return session
  }

  private async orDispose<T>(state: SessionState, work: Promise<T>): Promise<T> {
    try {
      return await work
    } catch (error) {
      await state.dispose()
      throw error
    }
  }

  private checkOpen(where: string): void {
    if (this.closing) throw disposedError(where)
  }

  private checkSize(config: SessionConfig, where: string, maxBytes = Number.MAX_SAFE_INTEGER): void {
    const { total } = estimateMemory(this.backend, config)
    if (total <= maxBytes) return
    throw new ParisError('out_of_memory', {
      where,
      got: `${total} bytes`,
      want: `at most ${maxBytes}`,
      fix: 'Lower capacity, layers or heads, or take a 16-bit store.',
    })
  }
}

function badBatch(code: 'bad_dtype' | 'bad_config', where: string, got: string, want: string): ParisError {
  const fix = 'Make one batch an engine, of sessions that it created, restored or whose forks they are.'
  return new ParisError(code, { where, got, want, fix })
}
