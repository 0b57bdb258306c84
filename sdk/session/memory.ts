import { attentionPlan } from '../attend/attention.ts'
import type { Backend } from '../backend.ts'
import { cacheBytes } from '../cache/cache-bytes.ts'
import { offloadPlan } from '../cache/offload-plan.ts'
import type { SessionConfig } from '../config.ts'
import type { Dtype } from '../dtype.ts'
import { auditPlan } from '../retrieve/audit.ts'
import { retrieverPlan } from '../retrieve/retriever.ts'

/** Bytes by purpose. */
export interface MemoryUse {
  /** Full keys and values on the device; where rows are offloaded those of sink, local zone and buffer. */
  readonly rows: number
  /** Codes of the retrieval zone. */
  readonly summary: number
  /** Working buffers. */
  readonly scratch: number
  /** The device's cache of hot rows. Present where rows are offloaded. */
  readonly hot?: number
  /**
   * All rows, in host memory, which outlast the device: see `Engine.recover`. Taken page by page as the sequence grows;
   * an estimate counts a full session. Present where rows are offloaded.
   */
  readonly pages?: number
  readonly total: number
}

/** Bytes of the scratch that decode steps need, at any length up to the capacity. */
export function stepPlan(
  backend: Backend,
  config: SessionConfig,
  store: Dtype,
  offloaded: boolean,
): Record<string, number> {
  const recording = backend.recorder ? { refused: 4, ...(offloaded ? { arriving: 4 } : undefined) } : undefined
  const piece = offloaded ? offloadPlan(config, store).staging : 0
  return {
    ...retrieverPlan(config),
    ...attentionPlan(backend, config, offloaded),
    ...auditPlan(config, config.policy.k, piece),
    ...recording,
  }
}

/** What a full session takes, by purpose. */
export function memoryOf(backend: Backend, config: SessionConfig, store: Dtype, offloaded: boolean): MemoryUse {
  const plan = stepPlan(backend, config, store, offloaded)
  const scratch = Object.values(plan).reduce((sum, bytes) => sum + Math.max(4, bytes), 0)
  return withTotal({ ...cacheBytes(config, backend.layout, store, offloaded), scratch })
}

export function withTotal(parts: Omit<MemoryUse, 'total'>): MemoryUse {
  return { ...parts, total: parts.rows + parts.summary + parts.scratch + (parts.hot ?? 0) + (parts.pages ?? 0) }
}
