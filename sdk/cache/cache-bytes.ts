import type { Backend } from '../backend.ts'
import type { SessionConfig } from '../config.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import { offloadBytes } from './offload-plan.ts'
import { summaryPlan } from './summary.ts'

/** Bytes that a configuration takes, before anything is allocated. `hot` and `pages` where rows are offloaded. */
export function cacheBytes(config: SessionConfig, layout: Backend['layout'], store: Dtype, offloaded: boolean) {
  const { layers, kvHeads, headDim } = config.shape
  const summary = layers * summaryPlan(config, layout).reduce((sum, [, bytes]) => sum + bytes, 0)
  if (offloaded) return { summary, ...offloadBytes(config, store) }
  return { summary, rows: 2 * layers * kvHeads * config.capacity * headDim * dtypeBytes(store) }
}
