import type { Backend } from '../backend.ts'
import { u32View } from '../bytes.ts'
import { segmentsOf } from '../cache/layer.ts'
import { summaryCapacity } from '../cache/summary.ts'
import type { SessionConfig } from '../config.ts'
import { choosersOf, type RetrieveItem } from './retriever.ts'

/** Recall of a session's audited retrievals. */
export interface Recall {
  /** Mean share of the exact top K that was retrieved, over heads and retrievals; NaN before the first. */
  readonly mean: number
  /** The latest. */
  readonly last: number
  /** Audited retrievals. */
  readonly audits: number
}

/** Gathers audits; owned by a session. */
export class RecallAudit {
  private retrievals = 0
  private audits = 0
  private sum = 0
  private last = Number.NaN

  constructor(private readonly every: number) {}

  /** Counts a retrieval; true when this one is to be audited. */
  due(): boolean {
    if (this.every === 0) return false
    this.retrievals++
    return this.retrievals % this.every === 0
  }

  /** Whether one of the next `count` retrievals is due. */
  comes(count: number): boolean {
    return this.every > 0 && (this.retrievals % this.every) + count >= this.every
  }

  /** Counts retrievals of which none is due. */
  skip(count: number): void {
    this.retrievals += count
  }

  add(recall: number): void {
    this.audits++
    this.sum += recall
    this.last = recall
  }

  read(): Recall {
    return { mean: this.sum / this.audits, last: this.last, audits: this.audits }
  }
}

/**
 * Bytes of the scratch that auditing a retrieval of `k` keys can need, at any length up to the capacity.
 * @param piece keys that are on the device at once, where not all are
 */
export function auditPlan(config: SessionConfig, k = config.policy.k, piece = 0): Record<string, number> {
  if (config.policy.auditEvery === 0) return {}
  const heads = config.shape.kvHeads
  const zone = summaryCapacity(config)
  const top = heads * Math.min(k, zone) * 4
  const whole = { auditValues: heads * zone * 4, auditIds: top, auditTop: top }
  return piece > 0 ? { ...whole, auditPart: heads * Math.min(piece, zone) * 4 } : whole
}

/**
 * The exact top K of a retrieval that has just run, by the stored keys: [H, K] zone indices, best first.
 * Scans the zone; waits.
 */
export async function exactTop(backend: Backend, item: RetrieveItem): Promise<Uint32Array> {
  const { config, layer, scratch, zone, base, k } = item
  const { kvHeads: heads, group } = config.shape
  await scratch.reserve(auditPlan(config, k, layer.offload?.shared.plan.staging))
  const choosers = choosersOf(config)
  const query = { chosen: scratch.get('chosen'), scale: choosers === 1 ? 1 / group : 1 }
  const estimates = scratch.get('auditValues')
  const topIds = scratch.get('auditIds')
  for await (const { keys, at, from, count } of segmentsOf(layer, base, base + zone)) {
    const whole = count === zone
    const part = whole ? estimates : scratch.get('auditPart')
    backend.rerank([{ source: { rows: keys, base: at, ...query }, heads, choosers, ids: null, count, estimates: part }])
    for (let h = 0; h < heads && !whole; h++)
      backend.copy(part, h * count * 4, estimates, (h * zone + from - base) * 4, count * 4)
  }
  backend.topk([{ values: estimates, ids: null, heads, count: zone, k, topIds, topValues: scratch.get('auditTop') }])
  return u32View(await backend.read(topIds, 0, heads * k * 4))
}

/** Share of `exact` found in `got`, both [H, K] zone indices, mean over heads. */
export function recallOf(got: Uint32Array, exact: Uint32Array, heads: number): number {
  const k = exact.length / heads
  let found = 0
  for (let h = 0; h < heads; h++) {
    const set = new Set(got.subarray(h * k, (h + 1) * k))
    for (const id of exact.subarray(h * k, (h + 1) * k)) if (set.has(id)) found++
  }
  return found / exact.length
}
