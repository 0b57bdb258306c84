import type { Backend } from './backend.ts'
import { memoryPages, type OpenPages } from './cache/pages.ts'
import type { CallOptions } from './calls.ts'
import { parseConfig, type SessionConfig, type SessionOptions } from './config.ts'
import { describe, ParisError, throwIfAborted } from './errors.ts'
import type { TensorInput } from './input.ts'
import { appendAll, type KeysValues } from './session/append.ts'
import type { MemoryUse } from './session/memory.ts'
import { checkSize, estimateMemory } from './session/placement.ts'
import { encodeAttendAll } from './session/record.ts'
import type { GpuAttention } from './session/record-checks.ts'
import { recoverState } from './session/recover.ts'
import { type RestoreOptions, restoreState } from './session/restore.ts'
import type { Session } from './session/session.ts'
import { Sessions } from './session/sessions.ts'
import { encodeRetrieveAll } from './session/split-calls.ts'
import type { GpuStep, SplitStep } from './session/split-step.ts'
import { disposedError, SessionState } from './session/state.ts'
import { type AttendResult, attendAll } from './session/steps.ts'
import { warmSteps } from './session/warm.ts'

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

/**
 * One backend and the sessions on it, and what opens the host's pages for those that keep rows there. Made by `createEngine` of an adapter, or by hand on any backend.
 */
export class Engine {
  readonly info: EngineInfo
  private readonly sessions = new Sessions()
  /** Sessions on their way, created or restored but not yet there, and what is being warmed. */
  private readonly opening = new Set<Promise<unknown>>()
  private closing: Promise<void> | undefined
  /** Fires with `dispose`: a restore may wait for its source for ever. */
  private readonly ending = new AbortController()

  constructor(
    /** @internal */ readonly backend: Backend,
    passedOver: readonly PassedOver[] = [],
    private readonly pages: OpenPages = memoryPages,
  ) {
    this.info = { backend: backend.name, description: backend.description, passedOver }
  }

  /** The GPUDevice that the engine runs on, for encoders and buffers of your own; undefined unless on webgpu. */
  get gpu(): GPUDevice | undefined {
    return this.backend.recorder?.device
  }

  /**
   * Opens an empty session. Memory is taken at once where `store` is given, otherwise at the first append.
   * @throws ParisError `bad_config`, `bad_head_dim`, `bad_k`, `out_of_memory`, `disposed`
   */
  async createSession(options: SessionOptions, call: Pick<CallOptions, 'signal'> = {}): Promise<Session> {
    this.checkOpen('engine.createSession')
    throwIfAborted(call?.signal, 'engine.createSession')
    const config = parseConfig(options)
    checkSize(this.backend, config, 'engine.createSession')
    return this.open(async () => {
      const state = new SessionState(this.backend, config, this.pages)
      if (config.store) await this.orDispose(state, state.open(config.store))
      return state
    })
  }

  /**
   * Bytes that a session would hold, before anything is allocated. Without `store` it counts f32 rows, the most.
   * A prefill, a `check` and a retrieval of more than the policy's k take working memory beside it.
   * @throws ParisError as `createSession`
   */
  estimate(options: SessionOptions): MemoryUse {
    const config = parseConfig(options, 'engine.estimate')
    checkSize(this.backend, config, 'engine.estimate')
    return estimateMemory(this.backend, config)
  }

  /**
   * Compiles ahead what sessions of this configuration use, so that their first calls do not wait for it: on a GPU one
   * pipeline a kernel, together; elsewhere nothing is to be done. Give `store`: f32 is assumed without it.
   * @throws ParisError `bad_config`, `bad_head_dim`, `bad_k`, `disposed`, `device_lost`
   */
  async warm(options: SessionOptions): Promise<void> {
    this.checkOpen('engine.warm')
    const warming = warmSteps(this.backend, parseConfig(options, 'engine.warm'))
    this.opening.add(warming)
    try {
      await warming
    } finally {
      this.opening.delete(warming)
    }
  }

  /**
   * Attention steps of many sessions and layers together; each result equals that of `session.attend` to the bit.
   * Refused as a whole.
   * @param items queries [Hq, d] each
   * @returns output [Hq, d] and lse [Hq] of each item, in their order
   * @throws ParisError as `session.attend`; `bad_config` for what is no array or a session of another engine
   */
  async attendBatch(
    items: ReadonlyArray<{ session: Session; layer: number; queries: TensorInput }>,
    options: Pick<CallOptions, 'signal'> = {},
  ): Promise<AttendResult[]> {
    const calls = this.callsOf(items, 'engine.attendBatch')
    return attendAll(
      calls.map(({ state, item: { layer, queries } }) => ({ state, layer, queries })),
      'engine.attendBatch',
      options ?? {},
    )
  }

  /**
   * `session.encodeAttend` of many sessions together, in as few dispatches as their buffers allow. Equal to the single
   * calls to the bit.
   * @param items each session once; queries [Hq, d] f32, output [Hq, d] f32 and lse [Hq] f32 as ranges of GPUBuffers,
   * where outputs may share a GPUBuffer that holds nothing else of the call
   * @returns as `Session.encodeAppend`
   * @throws ParisError as `Session.encodeAttend`; `bad_config` for what is no array or a session of another engine
   */
  encodeAttendBatch(
    encoder: GPUCommandEncoder,
    items: ReadonlyArray<GpuAttention & { session: Session; layer: number }>,
  ): () => void {
    const where = 'engine.encodeAttendBatch'
    const calls = this.callsOf(items, where)
    return encodeAttendAll(
      encoder,
      calls.map(({ state, item }) => ({ state, layer: item.layer, input: item })),
      where,
    )
  }

  /**
   * The first half of a step of many sessions together, recorded as `session.encodeAttend` is, wherever their rows are:
   * appends a token to a layer where it is new, and retrieves. Submit it, await `fetch()` of what is returned, and submit
   * what its `encodeAttend` recorded; `release()` it then. Await `session.reserve(1)` of each before a token's first layer.
   * Equal to `session.append` and `session.attend` to the bit.
   * @param items each session once; queries [Hq, d] f32; append: keys and values [H, 1, d] of the token, where it is new
   * @throws ParisError as `Session.encodeAttend`; `offload_needs_submit` where `reserve` has to come first; then nothing
   * was recorded
   */
  encodeRetrieveBatch(
    encoder: GPUCommandEncoder,
    items: ReadonlyArray<GpuStep & { session: Session; layer: number }>,
  ): SplitStep {
    const where = 'engine.encodeRetrieveBatch'
    const calls = this.callsOf(items, where)
    return encodeRetrieveAll(
      encoder,
      calls.map(({ state, item }) => ({ state, layer: item.layer, input: item })),
      where,
    )
  }

  /**
   * Appends to many sessions and layers together, ragged: each item as `session.append`. All of it or nothing.
   * @param items keys and values [H, tokens, d] each
   * @throws ParisError as `session.append`; `bad_config` for what is no array or a session of another engine
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
   * @param stream read to its end, or cancelled where the snapshot is refused
   * @throws ParisError `snapshot_corrupt`, `snapshot_mismatch`, `out_of_memory`, `aborted`, `disposed`
   */
  async restore(stream: ReadableStream<Uint8Array>, options: RestoreOptions = {}): Promise<Session> {
    const where = 'engine.restore'
    this.checkOpen(where)
    const given = options?.signal
    const signal = given ? AbortSignal.any([given, this.ending.signal]) : this.ending.signal
    try {
      return await this.open(() =>
        restoreState(this.backend, stream, { ...options, signal }, this.pages, (config) => {
          checkSize(this.backend, config, where, options?.maxBytes)
        }),
      )
    } catch (error) {
      if (signal.reason === this.ending.signal.reason && error instanceof ParisError && error.code === 'aborted')
        throw disposedError(where)
      throw error
    }
  }

  /**
   * The session again on this engine, from the rows that it kept on the host, whatever has become of its device: the
   * same tokens and, on the same kind of backend, the same codes to the bit. The given session is disposed of; its pages
   * are not copied but taken over where this engine keeps rows on the host too.
   * @param session one whose rows are offloaded, of any engine, with no call under way
   * @throws ParisError `bad_config` for what is no session, `device_lost` where its rows were on the device,
   * `out_of_memory`, `disposed`; then the session still has its rows
   */
  async recover(session: Session): Promise<Session> {
    this.checkOpen('engine.recover')
    const admit = (config: SessionConfig) => checkSize(this.backend, config, 'engine.recover')
    const recovered = await this.open(() => recoverState(session?.state, this.backend, this.pages, admit))
    await session.dispose()
    return recovered
  }

  /**
   * Frees every session and the backend once the calls made before have ended; a restore under way is refused with
   * `disposed` and its source cancelled. May be called again.
   */
  async dispose(): Promise<void> {
    this.closing ??= this.close()
    return this.closing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose()
  }

  private async close(): Promise<void> {
    this.ending.abort()
    await Promise.allSettled(this.opening)
    try {
      await this.sessions.disposeAll()
    } finally {
      this.backend.dispose()
    }
  }

  private async open(make: () => Promise<SessionState>): Promise<Session> {
    const session = make().then((state) => this.sessions.add(state))
    this.opening.add(session)
    try {
      return await session
    } finally {
      this.opening.delete(session)
    }
  }

  /** The items of a batch with their states. @throws ParisError `bad_config`, `disposed` */
  private callsOf<T extends { session: Session }>(items: readonly T[], where: string) {
    this.checkOpen(where)
    if (!Array.isArray(items)) throw badBatch(where, describe(items), 'an array of items')
    return Array.from(items as readonly T[], (item) => {
      const state = (item?.session as Session | undefined)?.state
      if (state instanceof SessionState && state.backend === this.backend) return { state, item }
      const got = state ? 'a session of another engine' : describe(item?.session)
      throw badBatch(where, got, 'a session of this engine in each item')
    })
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
}

function badBatch(where: string, got: string, want: string): ParisError {
  const fix = 'Make one batch an engine, of sessions that it created, restored or whose forks they are.'
  return new ParisError('bad_config', { where, got, want, fix })
}
