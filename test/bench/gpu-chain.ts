import type { Buf } from '../../sdk/backend.ts'
import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import type { Rotation } from '../../sdk/codec/codec.ts'
import { DIM, GROUP, HEADS, type Layer, RECENT, SINK } from './gpu-data.ts'

/** How one retrieval is done. */
export interface Policy {
  readonly coarse: 'signs' | 'collision'
  readonly beta: number
  readonly rho?: number
  readonly k: number
}

const NAMES = [
  'queries',
  'chosen',
  'y',
  'scales',
  't',
  'scores',
  'ids',
  'estimates',
  'topIds',
  'topValues',
  'partials',
  'output',
  'lse',
] as const

/** A decode step of one sequence: its scratch and the job of every stage. */
export interface Step {
  readonly layer: Layer
  readonly policy: Policy
  readonly candidates: number
  readonly parts: number
  readonly buffers: Readonly<Record<(typeof NAMES)[number], Buf>>
}

const SCALE = 1 / Math.sqrt(DIM)

export async function makeSteps(backend: WebgpuBackend, layers: readonly Layer[], policy: Policy): Promise<Step[]> {
  const sizes = layers.map(({ count, summary }) => {
    const candidates = Math.min(count, Math.max(policy.k, Math.ceil(policy.beta * count)))
    const parts = backend.parts(SINK + policy.k + RECENT, HEADS)
    const most = Math.max(parts, backend.parts(count, HEADS))
    const Hq = HEADS * GROUP
    const bytes = [
      Hq * DIM * 4,
      HEADS * DIM * 4,
      HEADS * DIM * 4,
      HEADS * 4,
      HEADS * DIM,
      HEADS * summary.cap * 2,
      HEADS * candidates * 4,
      HEADS * candidates * 4,
      HEADS * policy.k * 4,
      HEADS * policy.k * 4,
      most * Hq * (DIM + 2) * 4,
      Hq * DIM * 4,
      Hq * 4,
    ]
    return { candidates, parts, bytes }
  })
  const requests = sizes.flatMap(({ bytes }) =>
    bytes.map((b, i) => ({ label: NAMES[i], bytes: b, together: NAMES[i] })),
  )
  const all = await backend.alloc(requests)
  return layers.map((layer, s) => {
    const { candidates, parts } = sizes[s]
    const mine = NAMES.map((name, i) => [name, all[s * NAMES.length + i]] as const)
    return { layer, policy, candidates, parts, buffers: Object.fromEntries(mine) as Step['buffers'] }
  })
}

export function freeSteps(backend: WebgpuBackend, steps: readonly Step[]): void {
  backend.free(steps.flatMap(({ buffers }) => Object.values(buffers)))
}

/** The stages of a batch, in order; `retrieval` of them come before `attend`. */
export function stagesOf(backend: WebgpuBackend, rotation: Rotation, steps: readonly Step[]) {
  const query = () =>
    backend.query(steps.map(({ buffers: b }) => ({ ...b, heads: HEADS, group: GROUP, choosers: 1, rotation })))
  const coarse = () => {
    const jobs = steps.map(({ layer, policy, buffers: { t, y, scores } }) => ({
      summary: layer.summary,
      heads: HEADS,
      choosers: 1,
      count: layer.count,
      t,
      y,
      rho: policy.rho ?? 1,
      normWeighted: false,
      scores,
      stride: layer.summary.cap,
    }))
    if (steps[0].policy.coarse === 'signs') backend.coarseSigns(jobs)
    else backend.coarseCollision(jobs)
  }
  const select = () =>
    backend.select(
      steps.map(({ layer, policy, candidates, buffers: { scores, ids } }) => {
        const bounds =
          policy.coarse === 'signs' ? { lo: -15 * DIM, hi: 15 * DIM, step: 2 } : { lo: 0, hi: (6 * DIM) / 8, step: 1 }
        return { scores, stride: layer.summary.cap, heads: HEADS, count: layer.count, candidates, ids, ...bounds }
      }),
    )
  const rerank = () =>
    backend.rerank(
      steps.map(({ layer, candidates, buffers: { y, scales, ids, estimates } }) => ({
        source: { codes: layer.summary, y, scales },
        heads: HEADS,
        choosers: 1,
        ids,
        count: candidates,
        estimates,
      })),
    )
  const topk = () =>
    backend.topk(
      steps.map(({ policy, candidates, buffers: { estimates, ids, topIds, topValues } }) => ({
        values: estimates,
        ids,
        heads: HEADS,
        count: candidates,
        k: policy.k,
        topIds,
        topValues,
      })),
    )
  const attend = () => backend.attend(steps.map(attendJob))
  const merge = () => backend.merge(steps.map((step) => mergeJob(step, step.parts)))
  return { query, coarse, select, rerank, topk, attend, merge }
}

export function attendJob({ layer, policy, parts, buffers: { queries, topIds, partials } }: Step) {
  const end = SINK + layer.count
  return {
    queries,
    keys: layer.keys,
    values: layer.values,
    heads: HEADS,
    group: GROUP,
    before: [0, SINK] as const,
    after: [end, end + RECENT] as const,
    ids: topIds,
    k: policy.k,
    base: SINK,
    scale: SCALE,
    parts,
    partials,
  }
}

/** Everything from 0 to `end`, nothing retrieved: what dense decoding does. */
export function denseDecode(backend: WebgpuBackend, step: Step) {
  const end = step.layer.count
  const parts = backend.parts(end, HEADS)
  const none = [end, end] as const
  const job = { ...attendJob(step), before: [0, end] as const, after: none, ids: null, k: 0, base: 0, parts }
  return { attend: () => backend.attend([job]), merge: () => backend.merge([mergeJob(step, parts)]), job }
}

function mergeJob({ buffers: { partials, output, lse } }: Step, parts: number) {
  return { partials, parts, queryHeads: HEADS * GROUP, d: DIM, output, lse }
}

/** Exact top-K of the group's summed query by the stored keys, [H, K]. */
export async function exactTop(backend: WebgpuBackend, step: Step): Promise<Uint32Array> {
  const { layer, policy, buffers } = step
  const [values, topIds, topValues] = await backend.alloc(
    [layer.count, policy.k, policy.k].map((n) => ({ label: 'exact', bytes: HEADS * n * 4 })),
  )
  const source = { rows: layer.keys, base: SINK, chosen: buffers.chosen, scale: SCALE }
  const common = { heads: HEADS, count: layer.count }
  backend.rerank([{ source, choosers: 1, ids: null, estimates: values, ...common }])
  backend.topk([{ values, ids: null, k: policy.k, topIds, topValues, ...common }])
  const raw = await backend.read(topIds, 0, HEADS * policy.k * 4)
  backend.free([values, topIds, topValues])
  return new Uint32Array(raw.buffer)
}

/** Share of the exact top-K that a step found, over all heads. */
export async function recallOf(backend: WebgpuBackend, step: Step): Promise<number> {
  const k = step.policy.k
  const exact = await exactTop(backend, step)
  const raw = await backend.read(step.buffers.topIds, 0, HEADS * k * 4)
  const found = new Uint32Array(raw.buffer)
  let hits = 0
  for (let h = 0; h < HEADS; h++) {
    const mine = new Set(found.subarray(h * k, (h + 1) * k))
    for (const id of exact.subarray(h * k, (h + 1) * k)) if (mine.has(id)) hits++
  }
  return hits / (HEADS * k)
}
