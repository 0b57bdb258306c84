import { type Attended, type AttendItem, attendFetched, attendStep } from '../attend/attention.ts'
import { mergePartials } from '../attend/merge-partials.ts'
import type { Backend } from '../backend.ts'
import { f32View, u32View } from '../bytes.ts'
import type { Cache } from '../cache/cache.ts'
import { segmentsOf } from '../cache/layer.ts'
import { type CallOptions, CallQueue } from '../calls.ts'
import { describe, ParisError, throwIfAborted } from '../errors.ts'
import { checkTensor, type Tensor, type TensorInput, tensorF32 } from '../input.ts'
import { exactTop, recallOf } from '../retrieve/audit.ts'
import { type RetrieveItem, retrieve, retrieverPlan } from '../retrieve/retriever.ts'
import { checkProducts } from './append.ts'
import { checkRefused } from './refused.ts'
import { disposedError, type SessionState } from './state.ts'

/** Attention of one step: output [Hq, d], lse [Hq] (natural log of Σ exp). */
export interface AttendResult {
  readonly output: Float32Array
  readonly lse: Float32Array
}

/** Retrieved keys of every KV head, best first: positions [H, k] u32, estimates of ⟨k, q⟩ [H, k] f32. */
export interface RetrieveResult {
  readonly indices: Uint32Array
  readonly scores: Float32Array
  /** Keys a head: what was asked for, or the whole zone where that is smaller. */
  readonly k: number
}

/** One step of a batch. */
export interface StepCall {
  readonly state: SessionState
  readonly layer: number
  /** [Hq, d]. */
  readonly queries: TensorInput
}

/** Checks the queries of one step. */
export function checkQueries(state: SessionState, layer: number, queries: TensorInput, where: string): Tensor {
  state.checkLayer(layer, where)
  const { queryHeads: heads, headDim: d } = state.config.shape
  return checkTensor(queries, { where, name: 'queries', heads, d, tokens: 1 })
}

/**
 * Attends for every call, in as few passes as their scratch allows. Refused as a whole before anything runs.
 * Calls of one session run one after the other; those of different sessions together.
 */
export async function attendAll(
  calls: readonly StepCall[],
  where: string,
  { signal }: CallOptions,
): Promise<AttendResult[]> {
  throwIfAborted(signal, where)
  const checked = calls.map(({ state, layer, queries }) => {
    if (state.disposed) throw disposedError(where)
    return { state, layer, queries: checkQueries(state, layer, queries, where) }
  })
  return CallQueue.runAll(
    calls.map(({ state }) => state.queue),
    async () => {
      throwIfAborted(signal, where)
      calls[0]?.state.backend.check?.()
      for (const { state, layer, queries } of checked) {
        await checkRefused(state, where)
        await checkProducts(state, layer, queries, where)
        await state.cache?.mend(layer)
      }
      const results = new Array<AttendResult>(calls.length)
      for (const round of rounds(checked)) await attendRound(round, results)
      return results
    },
  )
}

type Checked = { state: SessionState; layer: number; queries: Tensor; index: number }

/** Splits a batch so that no session comes twice in a round. */
function rounds(calls: readonly Omit<Checked, 'index'>[]): Checked[][] {
  const out: Checked[][] = []
  const seen = new Map<SessionState, number>()
  calls.forEach((call, index) => {
    const round = seen.get(call.state) ?? 0
    seen.set(call.state, round + 1)
    out[round] ??= []
    out[round].push({ ...call, index })
  })
  return out
}

async function attendRound(round: readonly Checked[], results: AttendResult[]): Promise<void> {
  const { backend } = round[0].state
  const open: { call: Checked; item: AttendItem }[] = []
  for (const call of round) {
    const { state, layer, queries, index } = call
    const { queryHeads, headDim } = state.config.shape
    if (state.cache) open.push({ call, item: attendItem(state, state.cache, layer, queries) })
    else {
      results[index] = emptyResult(queryHeads, headDim)
      state.calls.attend++
    }
  }
  if (open.length === 0) return
  const attended = await attendFetched(
    backend,
    open.map(({ item }) => item),
  )
  await Promise.all(
    open.map(async ({ call }, i) => {
      const { queryHeads, headDim } = call.state.config.shape
      results[call.index] = await readResult(backend, attended[i], queryHeads, headDim)
      call.state.calls.attend++
    }),
  )
  for (const [i, { item }] of attended.entries()) if (item) await auditRetrieval(open[i].call.state, item)
}

function emptyResult(queryHeads: number, headDim: number): AttendResult {
  const lse = new Float32Array(queryHeads).fill(Number.NEGATIVE_INFINITY)
  return { output: new Float32Array(queryHeads * headDim), lse }
}

function attendItem(state: SessionState, cache: Cache, layer: number, queries: Tensor): AttendItem {
  const q = tensorF32(queries)
  const buf = state.scratch.get('queries')
  state.backend.write(buf, 0, new Uint8Array(q.buffer, q.byteOffset, q.byteLength))
  const { config, scratch } = state
  return { config, rotation: cache.rotation, layer: cache.layer(layer), scratch, queries: buf }
}

/** Counts a retrieval that has just run and, where its turn has come, compares it with the exact top K. */
export async function auditRetrieval({ audit, backend, config }: SessionState, item: RetrieveItem): Promise<void> {
  if (!audit.due()) return
  const heads = config.shape.kvHeads
  const got = u32View(await backend.read(item.scratch.get('topIds'), 0, heads * item.k * 4))
  audit.add(recallOf(got, await exactTop(backend, item), heads))
}

/** Attends exactly to the positions [from, to). Inside the queue. @throws ParisError `bad_length` */
export async function attendRange(
  state: SessionState,
  layer: number,
  queries: Tensor,
  from: number,
  to: number,
): Promise<AttendResult> {
  const where = 'session.attendRange'
  const { backend, cache, config, scratch } = state
  const { queryHeads, kvHeads, headDim } = config.shape
  const length = state.length(layer)
  if (![from, to].every(Number.isInteger) || from < 0 || to < from || to > length)
    throw new ParisError('bad_length', {
      where: `${where}(from, to)`,
      got: `[${describe(from)}, ${describe(to)})`,
      want: `whole numbers with 0 ≤ from ≤ to ≤ ${length}`,
      fix: 'Ask for positions that the layer holds.',
    })
  await checkRefused(state, where)
  await checkProducts(state, layer, queries, where)
  if (!cache || from === to) return emptyResult(queryHeads, headDim)
  const item = attendItem(state, cache, layer, queries)
  let result: AttendResult | undefined
  for await (const { keys, values, at, count } of segmentsOf(item.layer, from, to)) {
    const parts = Math.max(1, backend.parts(count, kvHeads))
    await scratch.reserve({ partials: parts * queryHeads * (headDim + 2) * 4 })
    const rows = { ...item.layer, keys, values, offload: undefined }
    const [attended] = attendStep(backend, [{ ...item, layer: rows, range: [at, at + count] }])
    const part = await readResult(backend, attended, queryHeads, headDim)
    result = result ? mergePartials([result, part]) : part
  }
  return result ?? emptyResult(queryHeads, headDim)
}

async function readResult(
  backend: Backend,
  attended: Attended,
  queryHeads: number,
  headDim: number,
): Promise<AttendResult> {
  const [output, lse] = await backend.readAll([
    { buf: attended.output, offset: 0, bytes: queryHeads * headDim * 4 },
    { buf: attended.lse, offset: 0, bytes: queryHeads * 4 },
  ])
  return { output: f32View(output), lse: f32View(lse) }
}

/** Retrieves without attending. Inside the queue. */
export async function retrieveTop(
  state: SessionState,
  layer: number,
  queries: Tensor,
  k: number,
): Promise<RetrieveResult> {
  const { backend, config, scratch, cache } = state
  const heads = config.shape.kvHeads
  const { sink, retrieval } = cache?.zones(layer) ?? { sink: 0, retrieval: 0 }
  const found = Math.min(k, retrieval)
  await checkRefused(state, 'session.retrieve')
  await checkProducts(state, layer, queries, 'session.retrieve')
  if (!cache || found === 0) {
    state.calls.retrieve++
    return { indices: new Uint32Array(0), scores: new Float32Array(0), k: 0 }
  }
  await scratch.reserve(retrieverPlan(config, found))
  await cache.mend(layer)
  const item = { ...attendItem(state, cache, layer, queries), zone: retrieval, base: sink, k: found }
  const [top] = retrieve(backend, [item])
  const bytes = heads * found * 4
  const [ids, values] = await backend.readAll([top.ids, top.values].map((buf) => ({ buf, offset: 0, bytes })))
  await auditRetrieval(state, item)
  state.calls.retrieve++
  return { indices: u32View(ids).map((id) => id + sink), scores: f32View(values), k: found }
}

/** @throws ParisError `bad_k` */
export function checkK(k: number, where: string): void {
  if (Number.isInteger(k) && k >= 1) return
  throw new ParisError('bad_k', {
    where: `${where}(k)`,
    got: describe(k),
    want: 'a whole number of at least 1',
    fix: 'Ask for at least one key; a k above the zone returns the whole zone.',
  })
}
