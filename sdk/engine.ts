import type { Backend } from './backend.ts'
import type { CallOptions } from './calls.ts'
import { parseConfig, type SessionConfig, type SessionOptions } from './config.ts'
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
  private disposed = false

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
    throwIfAborted(call.signal, 'engine.createSession')
    const config = parseConfig(options)
    this.checkSize(config, 'createSession')
    const state = new SessionState(this.backend, config)
    if (config.store) await this.orDispose(state, state.open(config.store))
    return this.adopt(state)
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
    this.checkOpen('engine.attendBatch')
    const calls = items.map(({ session, layer, queries }) => ({ state: session.state, layer, queries }))
    return attendAll(calls, 'engine.attendBatch', options)
  }

  /**
   * Appends to many sessions and layers together, ragged: each item as `session.append`. All of it or nothing.
   * @param items keys and values [H, tokens, d] each
   */
  async appendBatch(
    items: ReadonlyArray<KeysValues & { session: Session; layer: number }>,
    options: CallOptions = {},
  ): Promise<void> {
    this.checkOpen('engine.appendBatch')
    const calls = items.map(({ session, layer, ...input }) => ({ state: session.state, layer, input }))
    return appendAll(calls, 'engine.appendBatch', options)
  }

  /**
   * Reads a snapshot of any backend into a new session.
   * @throws ParisError `snapshot_corrupt`, `snapshot_mismatch`, `out_of_memory`, `aborted`, `disposed`
   */
  async restore(stream: ReadableStream<Uint8Array>, options: RestoreOptions = {}): Promise<Session> {
    this.checkOpen('engine.restore')
    const state = await restoreState(this.backend, stream, options, (config) => {
      this.checkSize(config, 'engine.restore', options.maxBytes)
    })
    return this.adopt(state)
  }

  /** Frees every session and the backend once the calls made before have ended. May be called again. */
  async dispose(): Promise<void> {
    if (this.disposed) return
    this.disposed = true
    await this.sessions.disposeAll()
    this.backend.dispose()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose()
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
    if (this.disposed) throw disposedError(where)
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
