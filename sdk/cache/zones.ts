import type { Policy, SessionConfig } from '../config.ts'

/** Sizes of the four zones, in token order; they add up to the length. */
export interface Zones {
  readonly sink: number
  readonly retrieval: number
  readonly local: number
  readonly buffer: number
}

/**
 * Zones of a sequence of n tokens: a function of n alone, however it came to be.
 * s = min(n, sink); r = n − s; buffer = r mod update; p = r − buffer; local = min(p, local); retrieval = p − local.
 * The retrieval zone is positions [sink, sink + retrieval); it never shrinks as n grows.
 */
export function zonesOf(n: number, policy: Pick<Policy, 'sink' | 'local' | 'update'>): Zones {
  const sink = Math.min(n, policy.sink)
  const rest = n - sink
  const buffer = rest % policy.update
  const settled = rest - buffer
  const local = Math.min(settled, policy.local)
  return { sink, retrieval: settled - local, local, buffer }
}

/** Whether a layer of n tokens attends to everything: too short, or the whole zone would be retrieved anyway. */
export function isDense(n: number, config: SessionConfig): boolean {
  const { denseBelow, sink, local, k } = config.policy
  return n < Math.max(denseBelow, sink + local + 2 * k) || zonesOf(n, config.policy).retrieval <= k
}

/** The most positions one step attends to, at any length up to the capacity; no layer that is longer is dense. */
export function mostPositions(config: SessionConfig): number {
  const { denseBelow, sink, local, k, update } = config.policy
  const longestDense = Math.max(denseBelow, sink + local + 2 * k, sink + local + k + update)
  return Math.min(config.capacity, longestDense)
}
