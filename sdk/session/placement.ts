import type { Backend } from '../backend.ts'
import { offloadPlan } from '../cache/offload-plan.ts'
import type { SessionConfig } from '../config.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import { ParisError } from '../errors.ts'
import { type MemoryUse, memoryOf } from './memory.ts'

/** Whether a session of this configuration keeps the rows of its retrieval zone on the host. */
export function isOffloaded(backend: Backend, config: SessionConfig, store: Dtype): boolean {
  const { offload } = config.policy
  if (offload !== 'auto') return offload === 'always'
  return !fits(backend, config, store, false) && fits(backend, config, store, true)
}

/** Whether the device could hold a session beside nothing else. */
function fits(backend: Backend, config: SessionConfig, store: Dtype, offloaded: boolean): boolean {
  const { total, buffer } = backend.limits?.() ?? { total: Number.POSITIVE_INFINITY, buffer: Number.POSITIVE_INFINITY }
  const budget = Math.min(total, config.policy.vramBudget ?? Number.POSITIVE_INFINITY)
  const { kvHeads, headDim } = config.shape
  const plan = offloaded ? offloadPlan(config, store) : undefined
  const rows = plan ? plan.sink + plan.window + plan.hot : config.capacity
  if (kvHeads * rows * headDim * dtypeBytes(store) > buffer) return false
  return onDevice(memoryOf(backend, config, store, offloaded)) <= budget
}

/** Bytes of a session on the device. */
function onDevice({ total, pages = 0 }: MemoryUse): number {
  return total - pages
}

/** What opening a session would take, by purpose, and what its pages would when it is full. */
export function estimateMemory(backend: Backend, config: SessionConfig): MemoryUse {
  const store = config.store ?? 'f32'
  return memoryOf(backend, config, store, isOffloaded(backend, config, store))
}

/** @throws ParisError `out_of_memory` where a session would not stay within its own budgets */
export function checkBudgets(backend: Backend, config: SessionConfig, where: string): void {
  const { vramBudget, hostBudget } = config.policy
  const use = estimateMemory(backend, config)
  const refuse = (field: string, bytes: number, most: number | undefined, fix: string) => {
    if (most === undefined || bytes <= most) return
    const want = `at most ${most}, its budget`
    throw new ParisError('out_of_memory', { where: `${where}: policy.${field}`, got: `${bytes} bytes`, want, fix })
  }
  const less = 'Lower capacity, layers or heads, take a 16-bit store, or raise the budget.'
  refuse('vramBudget', onDevice(use), vramBudget, use.pages ? less : `Set offload: 'always', or else: ${less}`)
  refuse('hostBudget', use.pages ?? 0, hostBudget, less)
}
