import { mergePartials } from '../attend/merge-partials.ts'
import { f32View } from '../bytes.ts'
import type { Cache } from '../cache/cache.ts'
import { checkRoom, largestValue } from '../cache/room.ts'
import { type CallOptions, CallQueue, Pace } from '../calls.ts'
import type { Dtype } from '../dtype.ts'
import { ParisError, throwIfAborted } from '../errors.ts'
import { checkStorable, checkTensor, type Tensor, type TensorInput, tensorF32 } from '../input.ts'
import type { DenseJob } from '../kernels/dense.ts'
import { disposedError, type SessionState } from './state.ts'

/** Keys and values [H, tokens, d], one token or many. */
export interface KeysValues {
  readonly keys: TensorInput
  readonly values: TensorInput
}

/** Tokens that are written, encoded and, in a prefill, attended to at once. */
const APPEND_CHUNK = 4096
const PREFILL_CHUNK = 256

/** One append of a batch. */
export interface AppendCall {
  readonly state: SessionState
  readonly layer: number
  readonly input: KeysValues
}

/** Checked input of an append. */
export interface CheckedAppend {
  readonly keys: Tensor
  readonly values: Tensor
}

/** Checks all that does not depend on the session's present length. */
export function checkAppend(state: SessionState, layer: number, input: KeysValues, where: string): CheckedAppend {
  state.checkLayer(layer, where)
  const { kvHeads: heads, headDim: d } = state.config.shape
  const keys = checkTensor(input?.keys, { where, name: 'keys', heads, d })
  const values = checkTensor(input?.values, { where, name: 'values', heads, d, tokens: keys.tokens })
  const limit = largestValue(state.config.capacity)
  if (values.max > limit)
    throw outOfRange(where, `|v| up to ${values.max}`, `at most ${limit}, so that sums stay finite`)
  return { keys, values }
}

/**
 * Appends for every call, in order where several go to one layer. All of it or nothing: refused as a whole before
 * anything is written, rolled back as a whole when aborted.
 */
export async function appendAll(calls: readonly AppendCall[], where: string, options: CallOptions): Promise<void> {
  throwIfAborted(options.signal, where)
  const checked = calls.map(({ state, layer, input }) => {
    if (state.disposed) throw disposedError(where)
    return { state, layer, ...checkAppend(state, layer, input, where) }
  })
  await CallQueue.runAll(
    calls.map(({ state }) => state.queue),
    () => appendChecked(checked, where, options),
  )
}

type Checked = CheckedAppend & { readonly state: SessionState; readonly layer: number }

async function appendChecked(calls: readonly Checked[], where: string, options: CallOptions): Promise<void> {
  throwIfAborted(options.signal, where)
  const backend = calls[0]?.state.backend
  backend?.check?.()
  checkAllRoom(calls, where)
  checkStores(calls, where)
  await rollingBack(calls, async () => {
    for (const { state, keys } of calls) if (keys.tokens > 0) await state.open(keys.dtype)
    const total = calls.reduce((sum, { keys }) => sum + keys.tokens, 0)
    const pace = new Pace(where, total, 'tokens', options)
    let done = 0
    for (const call of calls)
      for (let from = 0, to = 0; from < call.keys.tokens; from = to) {
        to = Math.min(call.keys.tokens, from + Math.min(APPEND_CHUNK, call.state.cache?.chunk ?? APPEND_CHUNK))
        await appendChunk(call, from, to)
        done += to - from
        await pace.step(done)
      }
    backend?.check?.()
  })
  for (const { state } of calls) state.calls.append++
}

/** Writes tokens [from, to) and encodes what crossed into the retrieval zone. */
async function appendChunk({ state, layer, keys, values }: Checked, from: number, to: number): Promise<void> {
  const job = await state.cache?.append(layer, keys, values, from, to)
  if (job) state.backend.encode([job])
}

/** The first rows of a session decide its store unless its configuration did. @throws ParisError `out_of_range` */
function checkStores(calls: readonly Checked[], where: string): void {
  const stores = new Map<SessionState, Dtype>()
  for (const { state, keys, values } of calls) {
    if (keys.tokens === 0) continue
    const store = stores.get(state) ?? state.cache?.store ?? state.config.store ?? keys.dtype
    stores.set(state, store)
    checkStorable(keys, store, where, 'keys')
    checkStorable(values, store, where, 'values')
  }
}

/** @throws ParisError `capacity` where the calls together do not fit a layer */
function checkAllRoom(calls: readonly Checked[], where: string): void {
  const lengths = new Map<SessionState, Map<number, number>>()
  for (const { state, layer, keys } of calls) {
    const ofState = lengths.get(state) ?? new Map<number, number>()
    const length = ofState.get(layer) ?? state.length(layer)
    checkRoom(length, keys.tokens, state.config.capacity, where)
    lengths.set(state, ofState.set(layer, length + keys.tokens))
  }
}

/** Appends and attends causally: output [Hq, T, d], lse [Hq, T]. Inside the queue; rolled back when aborted. */
export async function prefillTokens(
  state: SessionState,
  layer: number,
  queries: Tensor,
  input: CheckedAppend,
  options: CallOptions,
): Promise<{ output: Float32Array; lse: Float32Array }> {
  const { keys, values } = input
  const { queryHeads, headDim: d } = state.config.shape
  const T = keys.tokens
  const call = { state, layer, keys, values }
  throwIfAborted(options.signal, 'session.prefill')
  checkAllRoom([call], 'session.prefill')
  checkStores([call], 'session.prefill')
  await checkProducts(state, layer, queries, 'session.prefill', keys.max)
  const output = new Float32Array(queryHeads * T * d)
  const lse = new Float32Array(queryHeads * T)
  const q = tensorF32(queries)
  await rollingBack([call], async () => {
    const pace = new Pace('session.prefill', T, 'tokens', options)
    if (T === 0) return
    const cache = await state.open(keys.dtype)
    // Each chunk reads every earlier row that is on the host: the fewer the better.
    const chunk = cache.offload ? cache.chunk : PREFILL_CHUNK
    const rows = queryHeads * Math.min(T, chunk)
    await state.scratch.reserve({ denseQueries: rows * d * 4, denseOutput: rows * d * 4, denseLse: rows * 4 })
    for (let from = 0; from < T; from += chunk) {
      const to = Math.min(T, from + chunk)
      await appendChunk(call, from, to)
      const part = await densePart(state, cache, layer, sliceTokens(q, T, d, from, to), to - from)
      for (let hq = 0; hq < queryHeads; hq++) {
        const [a, b] = [hq * (to - from), (hq + 1) * (to - from)]
        output.set(part.output.subarray(a * d, b * d), (hq * T + from) * d)
        lse.set(part.lse.subarray(a, b), hq * T + from)
      }
      await pace.step(to)
    }
  })
  state.calls.prefill++
  return { output, lse }
}

/** Exact causal attention of the layer's last `tokens` tokens; queries [Hq, tokens, d]. */
async function densePart(state: SessionState, cache: Cache, layer: number, queries: Float32Array, tokens: number) {
  const { backend, scratch, config } = state
  const { keys, values, length, offload } = cache.layer(layer)
  const { kvHeads: heads, group, queryHeads, headDim } = config.shape
  const [q, output, lse] = [scratch.get('denseQueries'), scratch.get('denseOutput'), scratch.get('denseLse')]
  backend.write(q, 0, new Uint8Array(queries.buffer, queries.byteOffset, queries.byteLength))
  const count = queryHeads * tokens
  const attend = async (rows: Pick<DenseJob, 'keys' | 'values' | 'first' | 'length'>) => {
    backend.dense([{ queries: q, tokens, ...rows, heads, group, scale: config.scale, output, lse }])
    const [o, l] = await backend.readAll([
      { buf: output, offset: 0, bytes: count * headDim * 4 },
      { buf: lse, offset: 0, bytes: count * 4 },
    ])
    return { output: f32View(o), lse: f32View(l) }
  }
  const first = length - tokens
  if (!offload) return attend({ keys, values, first })
  // Sink and window lie side by side; what is between them comes through the staging, all of it before every query.
  let result = await attend({ keys, values, first: offload.rowOf(first) })
  for await (const { count: seen, ...rows } of offload.between())
    result = mergePartials([result, await attend({ ...rows, first: seen - 1, length: seen })])
  return result
}

function sliceTokens(q: Float32Array, T: number, d: number, from: number, to: number): Float32Array {
  if (from === 0 && to === T) return q
  const heads = q.length / (T * d)
  const part = new Float32Array(heads * (to - from) * d)
  for (let h = 0; h < heads; h++) part.set(q.subarray((h * T + from) * d, (h * T + to) * d), h * (to - from) * d)
  return part
}

/** Undoes what a failed call appended. */
async function rollingBack(calls: readonly Checked[], body: () => Promise<void>): Promise<void> {
  const before = calls.map(({ state, layer }) => {
    const length = state.length(layer)
    state.underway.set(layer, length)
    return { state, opened: state.cache !== undefined, layer, length, maxKey: state.cache?.layer(layer).maxKey ?? 0 }
  })
  try {
    await body()
  } catch (error) {
    for (const { state, opened, layer, length, maxKey } of before)
      try {
        if (!opened) await state.unopen()
        await state.cache?.truncate(layer, length)
        if (state.cache) state.cache.layer(layer).maxKey = maxKey
      } catch {
        // On a lost device going back fails as well; what failed first is what to tell.
      }
    throw error
  } finally {
    for (const { state } of before) state.underway.clear()
  }
}

/**
 * Refuses queries whose products with the layer's keys, or with `newKeys` about to join them, could leave f32.
 * @param newKeys the largest |k| of those
 * @throws ParisError `out_of_range`
 */
export async function checkProducts(
  state: SessionState,
  layer: number,
  queries: Tensor,
  where: string,
  newKeys = 0,
): Promise<void> {
  const { group, paddedDim } = state.config.shape
  const fits = (maxKey: number) =>
    queries.max * group * Math.max(1, maxKey) * paddedDim * Math.max(1, state.config.scale) < 1e38
  if (fits(Math.max(newKeys, state.cache?.layer(layer).maxKey ?? 0))) return
  const maxKey = Math.max(newKeys, (await state.cache?.largestKey(layer)) ?? 0)
  if (fits(maxKey)) return
  throw outOfRange(where, `|q| up to ${queries.max} against |k| up to ${maxKey}`, 'products that stay below 1e38')
}

function outOfRange(where: string, got: string, want: string): ParisError {
  return new ParisError('out_of_range', { where, got, want, fix: 'Rescale; scores this large carry no information.' })
}
