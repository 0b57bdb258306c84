import { Bytes } from '../../sdk/bytes.ts'
import { makeRotation, type Rows, type Summary } from '../../sdk/codec/codec.ts'
import { seededSigns } from '../../sdk/codec/signs.ts'
import { bf16ToF32 } from '../../sdk/dtype.ts'
import { coarseCollision } from '../../sdk/kernels/coarse-collision.ts'
import { coarseSigns } from '../../sdk/kernels/coarse-signs.ts'
import { encode } from '../../sdk/kernels/encode.ts'
import { query } from '../../sdk/kernels/query.ts'
import { type RerankJob, rerank } from '../../sdk/kernels/rerank.ts'
import { select } from '../../sdk/kernels/select.ts'
import { topk } from '../../sdk/kernels/topk.ts'
import { emptySummary } from './jobs.ts'
import { loadTensors } from './tensors.ts'

/** Keys and queries of one KV head of a trained model. */
export interface Capture {
  /** [1, N, d] bf16. */
  readonly keys: Rows<Bytes>
  /** [G, P, d] of the last P positions. */
  readonly queries: Float32Array
  readonly group: number
  readonly positions: number
  readonly tokens: number
}

export function loadCapture(path: string | URL): Capture {
  const file = loadTensors(path)
  const [, tokens, d] = file.shape('keys')
  const [group, positions] = file.shape('queries')
  const keys: Rows<Bytes> = { buf: Bytes.of(file.get('keys', 'BF16')), dtype: 'bf16', cap: tokens, d }
  return { keys, queries: Float32Array.from(file.get('queries', 'BF16'), bf16ToF32), group, positions, tokens }
}

/** A way to find keys. `beta` 1 estimates every key. */
export interface Selector {
  readonly name: string
  readonly coarse: 'signs' | 'collision'
  readonly beta: number
  readonly normWeighted?: boolean
  /** `max`: each query of the group chooses; the truth is then the largest of their products. */
  readonly group?: 'mean' | 'max'
}

export interface Trial {
  readonly capture: Capture
  /** Half-open range of tokens that is searched. */
  readonly zone: readonly [number, number]
  /** K of recall@K. */
  readonly k: number
  readonly rho: number
  /** Indices into the captured positions. */
  readonly positions: readonly number[]
  readonly seeds: readonly number[]
  readonly selectors: readonly Selector[]
  readonly progress?: (done: number, of: number) => void
}

export interface Recall {
  /** Over seeds and positions. */
  readonly mean: number
  /** Standard deviation over seeds of the mean over positions. */
  readonly deviation: number
}

type Choosers = 'mean' | 'max'

/** Share of the exact top K that each selector finds, in the order given. */
export function measureRecall(trial: Trial): Recall[] {
  const { selectors, seeds, positions } = trial
  const truth = new Map<string, Uint32Array>()
  const means = selectors.map(() => [] as number[])
  seeds.forEach((seed, round) => {
    const zone = encodeZone(trial, seed)
    const found = selectors.map(() => 0)
    for (const position of positions) {
      const searches = new Map<Choosers, Search>()
      selectors.forEach((selector, i) => {
        const choosers = selector.group ?? 'mean'
        const search = searches.get(choosers) ?? startSearch(trial, zone, position, choosers)
        searches.set(choosers, search)
        const name = `${choosers} ${position}`
        const exact = truth.get(name) ?? exactTop(trial, search)
        truth.set(name, exact)
        const top = new Set(retrieve(trial, search, selector))
        found[i] += exact.filter((id) => top.has(id)).length / trial.k
      })
      trial.progress?.(round * positions.length + positions.indexOf(position) + 1, seeds.length * positions.length)
    }
    found.forEach((sum, i) => {
      means[i].push(sum / positions.length)
    })
  })
  return means.map((list) => {
    const mean = list.reduce((a, b) => a + b, 0) / list.length
    const squares = list.reduce((sum, v) => sum + (v - mean) ** 2, 0)
    return { mean, deviation: Math.sqrt(squares / Math.max(1, list.length - 1)) }
  })
}

function encodeZone({ capture, zone }: Trial, seed: number) {
  const { keys } = capture
  const rotation = makeRotation(keys.d, new Bytes(0))
  const signs = Bytes.of(seededSigns(seed, rotation.D))
  const count = zone[1] - zone[0]
  const summary = emptySummary(1, count, rotation.D, { norms: true, counts: true })
  encode({ keys, heads: 1, from: zone[0], count, rotation: { ...rotation, signs }, summary, at: 0 })
  return { summary, count, rotation: { ...rotation, signs } }
}

interface Search {
  readonly summary: Summary<Bytes>
  readonly count: number
  readonly choosers: number
  readonly chosen: Bytes
  readonly y: Bytes
  readonly scales: Bytes
  readonly t: Bytes
}

function startSearch(
  { capture }: Trial,
  { summary, count, rotation }: ReturnType<typeof encodeZone>,
  position: number,
  kind: Choosers,
): Search {
  const { group, positions, queries: all } = capture
  const { d, D } = rotation
  const choosers = kind === 'mean' ? 1 : group
  const queries = new Bytes(group * d * 4)
  for (let g = 0; g < group; g++)
    queries.f32.set(all.subarray((g * positions + position) * d, (g * positions + position + 1) * d), g * d)
  const [chosen, y] = [new Bytes(choosers * d * 4), new Bytes(choosers * D * 4)]
  const [scales, t] = [new Bytes(4), new Bytes(choosers * D)]
  query({ queries, heads: 1, group, choosers, rotation, chosen, y, scales, t })
  return { summary, count, choosers, chosen, y, scales, t }
}

function best(values: Bytes, ids: Bytes | null, count: number, k: number): Uint32Array {
  const topIds = new Bytes(k * 4)
  topk({ values, ids, heads: 1, count, k, topIds, topValues: new Bytes(k * 4) })
  return topIds.u32
}

function exactTop({ capture, zone, k }: Trial, { count, choosers, chosen }: Search): Uint32Array {
  const source = { rows: capture.keys, base: zone[0], chosen, scale: 1 }
  const estimates = new Bytes(count * 4)
  rerank({ source, heads: 1, choosers, ids: null, count, estimates })
  return best(estimates, null, count, k)
}

function retrieve(trial: Trial, search: Search, selector: Selector): Uint32Array {
  const { summary, count, choosers, y, scales, t } = search
  const source: RerankJob<Bytes>['source'] = { codes: summary, y, scales }
  const every = selector.beta === 1
  const candidates = every ? count : Math.max(trial.k, Math.ceil(selector.beta * count))
  const ids = every ? null : new Bytes(candidates * 4)
  if (ids) {
    const scores = new Bytes(summary.cap * 2)
    const job = { summary, heads: 1, choosers, count, scores, stride: summary.cap }
    const votes = selector.coarse === 'collision'
    if (votes) coarseCollision({ ...job, y, rho: trial.rho })
    else coarseSigns({ ...job, t, normWeighted: selector.normWeighted ?? false })
    const [lo, hi] = votes ? [0, (6 * summary.D) / 8] : [-15 * summary.D, 15 * summary.D]
    select({ scores, stride: summary.cap, heads: 1, count, candidates, lo, hi, step: 1, ids })
  }
  const estimates = new Bytes(candidates * 4)
  rerank({ source, heads: 1, choosers, ids, count: candidates, estimates })
  return best(estimates, ids, candidates, trial.k)
}
