import type { Backend } from '../backend.ts'
import { offloadPlan } from '../cache/offload-plan.ts'
import { summaryCapacity } from '../cache/summary.ts'
import type { Placement, PolicyOptions, SessionConfig } from '../config.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import { ParisError } from '../errors.ts'
import { type MemoryUse, memoryOf } from './memory.ts'

/**
 * Whether a session of this configuration keeps the rows of its retrieval zone on the host.
 * @param taken bytes of the device that others hold: as it is opened `backend.allocated()`
 */
export function isOffloaded(backend: Backend, config: SessionConfig, store: Dtype, taken = 0): boolean {
  const { offload } = config.policy
  if (offload !== 'auto') return offload === 'always'
  return !fits(backend, config, store, false, taken) && fits(backend, config, store, true, taken)
}

/** Whether a session stays within its budgets and what the device has left. */
function fits(backend: Backend, config: SessionConfig, store: Dtype, offloaded: boolean, taken = 0): boolean {
  const { total, buffer } = backend.limits?.() ?? { total: Number.POSITIVE_INFINITY, buffer: Number.POSITIVE_INFINITY }
  const budget = Math.min(total - taken, config.policy.vramBudget ?? Number.POSITIVE_INFINITY)
  const { kvHeads, headDim } = config.shape
  const rows = offloaded ? rowsOnDevice(config, store) : kvHeads * config.capacity * headDim * dtypeBytes(store)
  if (rows > (offloaded ? Math.min(buffer, backend.recorder?.reach ?? buffer) : buffer)) return false
  const use = memoryOf(backend, config, store, offloaded)
  return onDevice(use) <= budget && (use.pages ?? 0) <= (config.policy.hostBudget ?? Number.POSITIVE_INFINITY)
}

/** The fields of a policy that say where rows live. */
export function placementOf(policy: PolicyOptions = {}): Placement {
  const { offload, vramBudget, hostBudget, hotRows } = policy
  return { offload, vramBudget, hostBudget, hotRows }
}

/** A policy that lives where a configuration does, but for what it says itself of that. */
export function placedAs(config: SessionConfig, policy: PolicyOptions): PolicyOptions {
  const given = Object.entries(policy).filter(([, value]) => value !== undefined)
  return { ...placementOf(config.policy), ...Object.fromEntries(given) }
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

/**
 * Whether a session may be opened here at all.
 * @param maxBytes that it may take
 * @throws ParisError `out_of_memory`
 */
export function checkSize(
  backend: Backend,
  config: SessionConfig,
  where: string,
  maxBytes = Number.MAX_SAFE_INTEGER,
): void {
  checkBudgets(backend, config, where)
  const { reach = Number.POSITIVE_INFINITY } = backend.recorder ?? {}
  const refuse = (got: string, want: string, fix: string) => {
    throw new ParisError('out_of_memory', { where, got, want, fix })
  }
  const binding = `at most ${reach}, what one binding of this device holds`
  // Where every key is a candidate, its id and its estimate take four bytes each.
  const widest = 4 * summaryCapacity(config)
  const wider = 'open the device with its largest maxStorageBufferBindingSize.'
  if (widest > reach) refuse(`${widest} bytes of candidates a head`, binding, `Lower capacity, or ${wider}`)
  const { total, pages } = estimateMemory(backend, config)
  const rows = pages === undefined ? 0 : rowsOnDevice(config, config.store ?? 'f32')
  if (rows > reach) {
    const fix = `Lower denseBelow, update, local or hotRows, or ${wider}`
    refuse(`${rows} bytes of a layer's keys that stay on the device`, binding, fix)
  }
  const fix = 'Lower capacity, layers or heads, take a 16-bit store, or raise the maxBytes of a restore.'
  if (total > maxBytes) refuse(`${total} bytes`, `at most ${maxBytes}`, fix)
}

/** Bytes of the keys of a layer that an offloaded session has on the device, which kernels see in one binding. */
function rowsOnDevice(config: SessionConfig, store: Dtype): number {
  const { sink, window, hot } = offloadPlan(config, store)
  return config.shape.kvHeads * (sink + window + hot) * config.shape.headDim * dtypeBytes(store)
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
  const helps = !use.pages && fits(backend, config, config.store ?? 'f32', true)
  refuse('vramBudget', onDevice(use), vramBudget, helps ? `Set offload: 'always', or else: ${less}` : less)
  refuse('hostBudget', use.pages ?? 0, hostBudget, less)
}
