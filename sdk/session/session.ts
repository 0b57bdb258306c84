import type { CallOptions } from '../calls.ts'
import { configOptions, type PolicyOptions, parseConfig, type SessionConfig } from '../config.ts'
import { describe, ParisError, throwIfAborted } from '../errors.ts'
import { checkTensor, type TensorInput } from '../input.ts'
import { appendAll, checkAppend, type KeysValues, prefillTokens } from './append.ts'
import { type CheckReport, checkState } from './check.ts'
import type { MemoryUse } from './memory.ts'
import { checkBudgets, placedAs } from './placement.ts'
import { encodeAppend, encodeAttend, encodePrefill } from './record.ts'
import type { GpuAttention, GpuKeysValues } from './record-checks.ts'
import { copyRefused } from './refused.ts'
import { reserveRoom } from './reserve.ts'
import type { Sessions } from './sessions.ts'
import { snapshotStream } from './snapshot.ts'
import { attendFrom } from './split-calls.ts'
import type { GpuStep } from './split-step.ts'
import { SessionState } from './state.ts'
import { type SessionStats, statsOf } from './stats.ts'
import {
  type AttendResult,
  attendAll,
  attendRange,
  checkK,
  checkQueries,
  type RetrieveResult,
  retrieveTop,
} from './steps.ts'
import { undoAppends } from './undo.ts'

/**
 * The KV cache of one sequence, all layers. Made by `Engine.createSession`.
 * Calls run in call order. Typed arrays handed in are read until the call's promise settles: leave them unchanged until
 * then. Every call that works on the tokens throws `disposed` after `dispose()`; a refused call changes nothing. Where rows
 * are on the host, a call that reads or writes them throws what their pages throw too: `out_of_memory` where there is no
 * room, `internal` where a file fails.
 */
export class Session {
  /** @internal */
  constructor(
    /** @internal */ readonly state: SessionState,
    private readonly siblings: Sessions,
  ) {}

  /** The configuration with every default filled in. */
  get config(): SessionConfig {
    return this.state.config
  }

  /** Whether `dispose` has been called. */
  get disposed(): boolean {
    return this.state.disposed
  }

  /** Tokens of a layer, as of the calls that have completed. @throws ParisError `bad_layer` */
  length(layer = 0): number {
    this.state.checkLayer(layer, 'session.length')
    return this.state.settledLength(layer)
  }

  /**
   * Appends tokens to one layer.
   * @param input keys and values [H, tokens, d], after RoPE; one token or many
   * @throws ParisError `bad_layer`, `bad_dtype`, `bad_shape`, `not_finite`, `out_of_range`, `capacity`, `out_of_memory`, `aborted`
   */
  async append(layer: number, input: KeysValues, options: CallOptions = {}): Promise<void> {
    return appendAll([{ state: this.state, layer, input }], 'session.append', options ?? {})
  }

  /**
   * Appends a prompt (or a further part of one) and attends to it exactly and causally.
   * @param input queries [Hq, T, d], keys and values [H, T, d]
   * @returns output [Hq, T, d] and lse [Hq, T], the natural log of Σ exp
   * @throws ParisError as `append`
   */
  async prefill(
    layer: number,
    input: KeysValues & { queries: TensorInput },
    options: CallOptions = {},
  ): Promise<AttendResult> {
    const where = 'session.prefill'
    throwIfAborted(options?.signal, where)
    const checked = checkAppend(this.state, layer, input, where)
    const { queryHeads: heads, headDim: d } = this.config.shape
    const queries = checkTensor(input.queries, { where, name: 'queries', heads, d, tokens: checked.keys.tokens })
    return this.state.run(where, () => prefillTokens(this.state, layer, queries, checked, options ?? {}))
  }

  /**
   * One decode step of one layer: sink ∪ retrieved ∪ local ∪ buffer, or everything where the sequence is short.
   * @param input queries [Hq, d] of the latest token, whose key and value have been appended
   * @returns output [Hq, d] and lse [Hq]; of an empty layer 0 and −Inf
   * @throws ParisError `bad_layer`, `bad_dtype`, `bad_shape`, `not_finite`, `out_of_range`, `aborted`
   */
  async attend(
    layer: number,
    input: { queries: TensorInput },
    options: Pick<CallOptions, 'signal'> = {},
  ): Promise<AttendResult> {
    const [result] = await attendAll(
      [{ state: this.state, layer, queries: input?.queries }],
      'session.attend',
      options ?? {},
    )
    return result
  }

  /**
   * The K keys of the retrieval zone that matter most for these queries, at any length.
   * @param input queries [Hq, d]; k, by default the policy's
   * @returns positions in the sequence [H, k] and estimates of ⟨k, q⟩ [H, k], best first
   * @throws ParisError `bad_k`, `bad_layer`, `bad_dtype`, `bad_shape`, `not_finite`, `out_of_range`, `aborted`
   */
  async retrieve(
    layer: number,
    input: { queries: TensorInput; k?: number },
    options: Pick<CallOptions, 'signal'> = {},
  ): Promise<RetrieveResult> {
    const where = 'session.retrieve'
    throwIfAborted(options?.signal, where)
    const k = input?.k ?? this.config.policy.k
    checkK(k, where)
    const queries = checkQueries(this.state, layer, input?.queries, where)
    return this.state.run(where, async () => {
      throwIfAborted(options?.signal, where)
      return retrieveTop(this.state, layer, queries, k)
    })
  }

  /**
   * Exact attention to a range of positions, e.g. the part of a sequence that this host holds: a softmax of its own, to
   * be merged with those of the other ranges by their lse. Not counted as an `attend`.
   * @param input queries [Hq, d]; positions [from, to), 0 ≤ from ≤ to ≤ the layer's length
   * @returns output [Hq, d] and lse [Hq]; of an empty range 0 and −Inf
   * @throws ParisError `bad_length`, `bad_layer`, `bad_dtype`, `bad_shape`, `not_finite`, `out_of_range`, `out_of_memory`,
   * `aborted`
   */
  async attendRange(
    layer: number,
    input: { queries: TensorInput; from: number; to: number },
    options: Pick<CallOptions, 'signal'> = {},
  ): Promise<AttendResult> {
    const where = 'session.attendRange'
    throwIfAborted(options?.signal, where)
    const queries = checkQueries(this.state, layer, input?.queries, where)
    return this.state.run(where, async () => {
      throwIfAborted(options?.signal, where)
      return attendRange(this.state, layer, queries, input.from, input.to)
    })
  }

  /**
   * @internal Remembers a layer as it is. What is returned takes back everything appended to it since: for a host that
   * could not keep an append, and lets no other call in between.
   */
  undo(layer: number): () => Promise<void> {
    return undoAppends(this.state, layer)
  }

  /**
   * `append` recorded into your own encoder on `engine.gpu`, from GPUBuffers that stay yours; nothing is submitted or
   * read back. Record between passes. The length moves at once: submit before the next call that is not a recording, and
   * dispose of a session whose recording was never submitted.
   * Values that are NaN, Inf or beyond the store are stored as 0 and counted; the first `attend` or `retrieve` after it
   * throws `not_finite` with their number, once, and `check()` reports it. How large keys and values are is not looked
   * at: keep their products with the queries below 1e38.
   * @param input keys and values [H, tokens, d] of one dtype, f32 by default
   * @returns frees the recording's memory: call it after the submit
   * @throws ParisError `disposed`, `backend_unavailable` unless on webgpu, `offload_needs_submit` where rows are on the
   * host, `bad_layer`, `bad_dtype`, `bad_shape`, `capacity`, `busy` while other calls of this session are under way, `bad_config` where it was created without
   * `store` and is still empty, `device_lost`; then nothing was recorded
   */
  encodeAppend(encoder: GPUCommandEncoder, layer: number, input: GpuKeysValues): () => void {
    return encodeAppend({ state: this.state, encoder, layer, where: 'session.encodeAppend' }, input)
  }

  /**
   * `attend` recorded as `encodeAppend` is. Equal to `attend` to the bit; not audited, and the queries are not checked.
   * @param input queries [Hq, d] f32; output [Hq, d] f32 and lse [Hq] f32, each a GPUBuffer of its own
   * @returns as `encodeAppend`
   * @throws ParisError as `encodeAppend`, but for `capacity`
   */
  encodeAttend(encoder: GPUCommandEncoder, layer: number, input: GpuAttention): () => void {
    return encodeAttend({ state: this.state, encoder, layer, where: 'session.encodeAttend' }, input)
  }

  /**
   * `prefill` recorded as `encodeAppend` is, in one piece: cut a prompt yourself where one dispatch would take too long.
   * @param input keys and values [H, tokens, d] of one dtype, queries [Hq, tokens, d] f32; output [Hq, tokens, d] f32 and
   * lse [Hq, tokens] f32, each a GPUBuffer of its own
   * @returns as `encodeAppend`
   * @throws ParisError as `encodeAppend`
   */
  encodePrefill(encoder: GPUCommandEncoder, layer: number, input: GpuKeysValues & GpuAttention): () => void {
    return encodePrefill({ state: this.state, encoder, layer, where: 'session.encodePrefill' }, input)
  }

  /**
   * One decode step of one layer from GPUBuffers, wherever the rows are: appends the token where it is new, retrieves, waits
   * for what was retrieved, and leaves the attention's commands submitted; two submits and one wait. Equal to `append` and
   * `attend` to the bit; the queries are not checked. `Engine.encodeRetrieveBatch` has the halves.
   * @param input queries [Hq, d] f32; output [Hq, d] f32 and lse [Hq] f32, each a GPUBuffer of its own; append: keys and
   * values [H, 1, d], written by commands that have been submitted
   * @throws ParisError as `reserve`, `SplitStep.fetch` and `encodeAttend`, wherever rows are; then nothing was appended
   */
  async attendFrom(layer: number, input: GpuAttention & GpuStep): Promise<void> {
    return attendFrom(this.state, layer, input)
  }

  /**
   * Makes room for tokens behind every layer that are to come in GPUBuffers: where rows are on the host, pages for all of
   * them, and places on the device for as many as it has beside what a step reads.
   * @throws ParisError `capacity`, `bad_length`, `out_of_memory`, `disposed`
   */
  async reserve(tokens: number): Promise<void> {
    return this.state.run('session.reserve', () => reserveRoom(this.state, tokens))
  }

  /**
   * Forgets every layer's tokens from `length` on; layers that are shorter stay as they are.
   * @throws ParisError `bad_length` where no layer has that many
   */
  async truncate(length: number): Promise<void> {
    return this.state.run('session.truncate', async () => {
      const lengths = this.state.lengths()
      const longest = Math.max(...lengths)
      if (!Number.isInteger(length) || length < 0 || length > longest) {
        throw new ParisError('bad_length', {
          where: 'session.truncate(length)',
          got: describe(length),
          want: `a whole number from 0 to ${longest}`,
          fix: 'Truncation only shortens; append to lengthen.',
        })
      }
      // First, so that a snapshot that is being read finds out before rows are gone.
      for (const snapshot of this.state.snapshots) if (length < snapshot.longest) snapshot.stale = true
      for (const layer of lengths.keys()) await this.state.cache?.truncate(layer, length)
    })
  }

  /**
   * A second session with the same tokens; the two share nothing from here on.
   * @param options policy: another one for the copy, as `createSession` takes it, but that what it does not say of
   * placement (`offload`, `vramBudget`, `hostBudget`, `hotRows`) stays; without it the same
   * @throws ParisError `bad_config`, `bad_k`, `out_of_memory`
   */
  async fork({ policy }: { readonly policy?: PolicyOptions } = {}): Promise<Session> {
    const where = 'session.fork'
    const { config } = this
    const forked = policy ? parseConfig({ ...configOptions(config), policy: placedAs(config, policy) }, where) : config
    return this.state.run(where, async () => {
      checkBudgets(this.state.backend, forked, where)
      const copy = new SessionState(this.state.backend, forked, this.state.pages)
      await this.state.forkTo(copy)
      if (copy.cache) copyRefused(this.state, copy)
      return this.siblings.add(copy)
    })
  }

  /** Lengths, zones, calls and audited recall, as of the calls that have completed. */
  stats(): SessionStats {
    return statsOf(this.state)
  }

  /** Bytes held now; 0 for what the first append will take. */
  memory(): MemoryUse {
    return this.state.memory()
  }

  /**
   * Re-encodes a sample of every layer's retrieval zone and compares it with the codes there; reports what was stored as
   * 0 of GPUBuffers.
   * @throws ParisError `out_of_memory`
   */
  async check(): Promise<CheckReport> {
    return this.state.run('session.check', () => checkState(this.state))
  }

  /**
   * The session as one safetensors file, streamed; same bytes for the same tokens on one backend.
   * Describes the session as of the call. Appending may go on while it is read; a truncation below the captured length
   * or a dispose breaks the stream with `snapshot_stale`, an abort with `aborted`.
   * @throws ParisError `disposed`
   */
  snapshot(options: CallOptions = {}): ReadableStream<Uint8Array> {
    return snapshotStream(this.state, options ?? {})
  }

  /** Frees everything once the calls made before have ended. May be called again. */
  async dispose(): Promise<void> {
    try {
      await this.state.dispose()
    } finally {
      this.siblings.delete(this)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose()
  }
}
