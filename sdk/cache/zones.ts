import type { Policy } from '../config.ts'

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
