import { type Zones, zonesOf } from '../cache/zones.ts'
import type { Dtype } from '../dtype.ts'
import type { Recall } from '../retrieve/audit.ts'
import type { SessionState } from './state.ts'

/** What a session has done and holds. */
export interface SessionStats {
  readonly backend: string
  readonly store: Dtype | undefined
  /** By layer. */
  readonly layers: ReadonlyArray<{ readonly length: number; readonly zones: Zones }>
  /** Completed calls. */
  readonly calls: {
    readonly append: number
    readonly prefill: number
    readonly attend: number
    readonly retrieve: number
  }
  /** Of audited retrievals (`policy.auditEvery`). */
  readonly recall: Recall
  /**
   * Where rows are offloaded (`policy.offload`): retrieved rows that a step found on the device and left there, and those
   * that came from the host, also where they had to make way for others only. hitRate is the share of the former, NaN
   * before the first.
   */
  readonly offload?: { readonly hits: number; readonly misses: number; readonly hitRate: number }
}

/** See `Session.stats`. */
export function statsOf(state: SessionState): SessionStats {
  const { backend, cache, config, calls, audit } = state
  const seen = cache?.offload?.seen
  const layers = state.lengths().map((_, layer) => {
    const length = state.settledLength(layer)
    return { length, zones: zonesOf(length, config.policy) }
  })
  return {
    backend: backend.name,
    store: cache?.store ?? config.store,
    layers,
    calls: { ...calls },
    recall: audit.read(),
    ...(seen ? { offload: { ...seen, hitRate: seen.hits / (seen.hits + seen.misses) } } : undefined),
  }
}
