import type { Backend, Buf } from '../backend.ts'
import { zonesOf } from '../cache/zones.ts'
import type { SessionConfig } from '../config.ts'
import { type AttendJob, attendCount } from '../kernels/attend.ts'
import { type Retrieved, type RetrieveItem, retrieve } from '../retrieve/retriever.ts'

/** One layer's attention of one session; `k` and the zone follow from its length. */
export interface AttendItem extends Omit<RetrieveItem, 'zone' | 'base' | 'k'> {
  /** Where output and lse go; by default to the scratch. */
  readonly output?: Buf
  readonly lse?: Buf
  /** Attends exactly to the positions [from, to) and to no others. The scratch's `partials` must hold its parts. */
  readonly range?: readonly [number, number]
}

/** What a step attended to. */
export interface Attended {
  /** [Hq, d] f32 and [Hq] f32 on the backend. */
  readonly output: Buf
  readonly lse: Buf
  /** Present where the step retrieved. */
  readonly item?: RetrieveItem
}

/** Whether a layer of n tokens attends to everything: too short, or the whole zone would be retrieved anyway. */
export function isDense(n: number, config: SessionConfig): boolean {
  const { denseBelow, sink, local, k } = config.policy
  return n < Math.max(denseBelow, sink + local + 2 * k) || zonesOf(n, config.policy).retrieval <= k
}

/** The most positions one step attends to, at any length up to the capacity. */
function mostPositions(config: SessionConfig): number {
  const { denseBelow, sink, local, k, update } = config.policy
  const longestDense = Math.max(denseBelow, sink + local + 2 * k, sink + local + k + update)
  return Math.min(config.capacity, longestDense)
}

/** Bytes of the scratch of a decode step. */
export function attentionPlan(backend: Pick<Backend, 'parts'>, config: SessionConfig): Record<string, number> {
  const { queryHeads, headDim, kvHeads } = config.shape
  const parts = Math.max(1, backend.parts(mostPositions(config), kvHeads))
  return {
    queries: queryHeads * headDim * 4,
    partials: parts * queryHeads * (headDim + 2) * 4,
    output: queryHeads * headDim * 4,
    lse: queryHeads * 4,
  }
}

/**
 * A decode step of a batch: retrieve where the length asks for it, attend, merge. Only enqueues.
 * Items have different scratch, reserved by `attentionPlan` and `retrieverPlan`.
 */
export function attendStep(backend: Backend, items: readonly AttendItem[]): Attended[] {
  const sparse = items.flatMap((item) => sparseItem(item) ?? [])
  const found = sparse.length > 0 ? retrieve(backend, sparse) : []
  const byScratch = new Map(sparse.map((item, i) => [item.scratch, { item, found: found[i] }]))
  const jobs = items.map((item) => attendJob(backend, item, byScratch.get(item.scratch)))
  const attended = items.map(({ scratch, output, lse }) => ({
    output: output ?? scratch.get('output'),
    lse: lse ?? scratch.get('lse'),
    item: byScratch.get(scratch)?.item,
  }))
  backend.attend(jobs)
  backend.merge(
    items.map(({ config, scratch }, i) => ({
      partials: scratch.get('partials'),
      parts: jobs[i].parts,
      queryHeads: config.shape.queryHeads,
      d: config.shape.headDim,
      output: attended[i].output,
      lse: attended[i].lse,
    })),
  )
  return attended
}

function sparseItem(item: AttendItem): RetrieveItem | undefined {
  const n = item.layer.length
  if (item.range || isDense(n, item.config)) return undefined
  const { sink, retrieval } = zonesOf(n, item.config.policy)
  return { ...item, zone: retrieval, base: sink, k: item.config.policy.k }
}

function attendJob(
  backend: Backend,
  item: AttendItem,
  sparse: { item: RetrieveItem; found: Retrieved } | undefined,
): AttendJob {
  const { config, layer, scratch } = item
  const n = layer.length
  const { sink, retrieval } = zonesOf(n, config.policy)
  const where: Pick<AttendJob, 'before' | 'after' | 'ids' | 'k' | 'base'> = sparse
    ? { before: [0, sink], after: [sink + retrieval, n], ids: sparse.found.ids, k: sparse.item.k, base: sink }
    : { before: item.range ?? [0, n], after: [n, n], ids: null, k: 0, base: 0 }
  const job = {
    queries: item.queries,
    keys: layer.keys,
    values: layer.values,
    heads: config.shape.kvHeads,
    group: config.shape.group,
    scale: config.scale,
    partials: scratch.get('partials'),
    ...where,
  }
  return { ...job, parts: Math.max(1, backend.parts(attendCount(job), config.shape.kvHeads)) }
}
