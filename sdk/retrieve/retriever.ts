import type { Backend, Buf } from '../backend.ts'
import type { LayerCache } from '../cache/layer.ts'
import { summaryCapacity } from '../cache/summary.ts'
import type { Rotation } from '../codec/codec.ts'
import type { SessionConfig } from '../config.ts'
import type { CoarseSignsJob } from '../kernels/coarse-signs.ts'
import type { RerankJob } from '../kernels/rerank.ts'
import type { SelectJob } from '../kernels/select.ts'
import { M } from '../shape.ts'
import { candidateCount, collisionRatio, mostCandidates } from './budget.ts'
import type { Scratch } from './scratch.ts'

/** One layer's retrieval of one session. Items of a batch have different scratch. */
export interface RetrieveItem {
  readonly config: SessionConfig
  readonly rotation: Rotation
  readonly layer: LayerCache
  readonly scratch: Scratch
  /** [Hq, d] f32 on the backend. */
  readonly queries: Buf
  /** Keys in the zone, at least 1. */
  readonly zone: number
  /** First position of the zone. */
  readonly base: number
  /** 1 ≤ K ≤ zone. */
  readonly k: number
}

/** Where a retrieval left its result: `topIds` [H, K] u32 indices in the zone, `topValues` [H, K] f32 estimates. */
export interface Retrieved {
  readonly ids: Buf
  readonly values: Buf
}

/** Choosers of a group: 1 for `mean`, G for `max`. */
export function choosersOf(config: SessionConfig): number {
  return config.policy.group === 'mean' ? 1 : config.shape.group
}

/** Bytes of every scratch buffer that retrieving `k` keys can need, at any length up to the capacity. */
export function retrieverPlan(config: SessionConfig, k = config.policy.k): Record<string, number> {
  const { shape, policy } = config
  const zone = summaryCapacity(config)
  const rows = shape.kvHeads * choosersOf(config)
  const candidates = mostCandidates(zone, k, policy)
  return {
    chosen: rows * shape.headDim * 4,
    y: rows * shape.paddedDim * 4,
    scales: shape.kvHeads * 4,
    t: rows * shape.paddedDim,
    scores: shape.kvHeads * zone * 2,
    ids: shape.kvHeads * candidates * 4,
    estimates: shape.kvHeads * candidates * 4,
    topIds: shape.kvHeads * Math.min(k, zone) * 4,
    topValues: shape.kvHeads * Math.min(k, zone) * 4,
  }
}

/**
 * Runs query → coarse → select → rerank → topk for a batch, stage by stage. Only enqueues; reading waits.
 * The scratch must have been reserved by `retrieverPlan`. Where every key is a candidate, coarse and select are skipped.
 */
export function retrieve(backend: Backend, items: readonly RetrieveItem[]): Retrieved[] {
  backend.query(items.map(queryJob))
  const partial = items.filter((item) => candidatesOf(item) < item.zone)
  const signs = partial.filter((item) => item.config.policy.coarse === 'signs')
  const collision = partial.filter((item) => item.config.policy.coarse === 'collision')
  if (signs.length > 0) backend.coarseSigns(signs.map(coarseJob))
  if (collision.length > 0) {
    backend.coarseCollision(
      collision.map((item) => ({
        ...coarseJob(item),
        y: item.scratch.get('y'),
        rho: collisionRatio(item.zone, item.config.policy),
      })),
    )
  }
  if (partial.length > 0) backend.select(partial.map(selectJob))
  backend.rerank(items.map(rerankJob))
  return topOf(backend, items)
}

function topOf(backend: Backend, items: readonly RetrieveItem[]): Retrieved[] {
  backend.topk(
    items.map((item) => ({
      values: item.scratch.get('estimates'),
      ids: candidatesOf(item) < item.zone ? item.scratch.get('ids') : null,
      heads: item.config.shape.kvHeads,
      count: candidatesOf(item),
      k: item.k,
      topIds: item.scratch.get('topIds'),
      topValues: item.scratch.get('topValues'),
    })),
  )
  return items.map(({ scratch }) => ({ ids: scratch.get('topIds'), values: scratch.get('topValues') }))
}

function candidatesOf(item: RetrieveItem): number {
  return candidateCount(item.zone, item.k, item.config.policy)
}

function queryJob(item: RetrieveItem) {
  const { shape } = item.config
  return {
    queries: item.queries,
    heads: shape.kvHeads,
    group: shape.group,
    choosers: choosersOf(item.config),
    rotation: item.rotation,
    chosen: item.scratch.get('chosen'),
    y: item.scratch.get('y'),
    scales: item.scratch.get('scales'),
    t: item.scratch.get('t'),
  }
}

function coarseJob(item: RetrieveItem): CoarseSignsJob {
  return {
    summary: item.layer.summary,
    heads: item.config.shape.kvHeads,
    choosers: choosersOf(item.config),
    count: item.zone,
    t: item.scratch.get('t'),
    normWeighted: item.config.policy.normWeighted,
    scores: item.scratch.get('scores'),
    stride: item.layer.summary.cap,
  }
}

function selectJob(item: RetrieveItem): SelectJob {
  const { shape, policy } = item.config
  const range = 15 * shape.paddedDim
  // One chooser's sign scores have one parity; a maximum over choosers, or a weighted score, need not.
  const step = policy.coarse === 'signs' && !policy.normWeighted && choosersOf(item.config) === 1 ? 2 : 1
  const bounds =
    policy.coarse === 'signs' ? { lo: -range, hi: range, step } : { lo: 0, hi: 6 * (shape.paddedDim / M), step }
  return {
    scores: item.scratch.get('scores'),
    stride: item.layer.summary.cap,
    heads: shape.kvHeads,
    count: item.zone,
    candidates: candidatesOf(item),
    ids: item.scratch.get('ids'),
    ...bounds,
  }
}

function rerankJob(item: RetrieveItem): RerankJob {
  const count = candidatesOf(item)
  const { scratch } = item
  return {
    source: { codes: item.layer.summary, y: scratch.get('y'), scales: scratch.get('scales') },
    heads: item.config.shape.kvHeads,
    choosers: choosersOf(item.config),
    ids: count < item.zone ? scratch.get('ids') : null,
    count,
    estimates: scratch.get('estimates'),
  }
}
