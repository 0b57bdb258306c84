import type { Backend, Buf, ReadPart } from '../backend.ts'
import { u32View } from '../bytes.ts'
import { isDense, mostPositions, zonesOf } from '../cache/zones.ts'
import type { SessionConfig } from '../config.ts'
import { type AttendJob, attendCount } from '../kernels/attend.ts'
import { type RetrieveItem, retrieve } from '../retrieve/retriever.ts'

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

/** Bytes of the scratch of a decode step. @param offloaded whether rows may be on the host */
export function attentionPlan(
  backend: Pick<Backend, 'parts'>,
  config: SessionConfig,
  offloaded: boolean,
): Record<string, number> {
  const { queryHeads, headDim, kvHeads } = config.shape
  const parts = Math.max(1, backend.parts(mostPositions(config), kvHeads))
  return {
    queries: queryHeads * headDim * 4,
    partials: parts * queryHeads * (headDim + 2) * 4,
    output: queryHeads * headDim * 4,
    lse: queryHeads * 4,
    ...(offloaded ? { places: kvHeads * config.policy.k * 4 } : undefined),
  }
}

/** A retrieval of a step, and where its keys are: `ids` [H, K] u32, position or place on the device = base + id. */
export interface Found {
  readonly item: RetrieveItem
  readonly ids: Buf
  readonly base: number
}

/**
 * A decode step of a batch: retrieve where the length asks for it, attend, merge. Only enqueues: every row is on the
 * device. Items have different scratch, reserved by `attentionPlan` and `retrieverPlan`.
 */
export function attendStep(backend: Backend, items: readonly AttendItem[]): Attended[] {
  return attendTo(backend, items, retrieveStep(backend, items))
}

/** The same where rows may be on the host: waits for what was retrieved, and brings what is missing. */
export async function attendFetched(backend: Backend, items: readonly AttendItem[]): Promise<Attended[]> {
  const found = retrieveStep(backend, items)
  const away = found.filter(isAway)
  if (away.length > 0) {
    const read = await backend.readAll(away.map(idsOf))
    for (const [i, one] of away.entries()) await bring(backend, one, u32View(read[i]))
  }
  return attendTo(backend, items, found.map(placed))
}

/** Whether what a step found lies on the host. */
export function isAway({ item }: Found): boolean {
  return item.layer.offload !== undefined
}

/** Where the indices of what was found are read. */
export function idsOf({ item, ids }: Found): ReadPart {
  return { buf: ids, offset: 0, bytes: item.config.shape.kvHeads * item.k * 4 }
}

/** Brings rows onto the device whose indices were read; `placed` says where they are from then on. */
export async function bring(backend: Backend, { item }: Found, ids: Uint32Array): Promise<void> {
  const places = await item.layer.offload?.fetch(ids, item.k, item.base)
  if (!places) return
  const bytes = new Uint8Array(places.buffer, places.byteOffset, places.byteLength)
  backend.write(item.scratch.get('places'), 0, bytes)
}

/** What was found, by place on the device. */
export function placed(found: Found): Found {
  return isAway(found) ? { ...found, ids: found.item.scratch.get('places'), base: 0 } : found
}

/** The first half of a step: retrieves where the length asks for it. Only enqueues. */
export function retrieveStep(backend: Backend, items: readonly AttendItem[]): Found[] {
  const sparse = items.flatMap((item) => sparseItem(item) ?? [])
  const found = sparse.length > 0 ? retrieve(backend, sparse) : []
  return sparse.map((item, i) => ({ item, ids: found[i].ids, base: item.base }))
}

/** The second half: attends to what was found, and merges. Only enqueues. */
export function attendTo(backend: Backend, items: readonly AttendItem[], found: readonly Found[]): Attended[] {
  const byScratch = new Map(found.map((one) => [one.item.scratch, one]))
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

function attendJob(backend: Backend, item: AttendItem, found: Found | undefined): AttendJob {
  const { config, layer, scratch } = item
  const n = layer.length
  const { sink, retrieval } = zonesOf(n, config.policy)
  const latest = layer.offload?.rowOf(sink + retrieval) ?? sink + retrieval
  const where: Pick<AttendJob, 'before' | 'after' | 'ids' | 'k' | 'base'> = found
    ? {
        before: [0, sink],
        after: [latest, latest + n - sink - retrieval],
        ids: found.ids,
        k: found.item.k,
        base: found.base,
      }
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
