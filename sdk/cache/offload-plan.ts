import type { SessionConfig } from '../config.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import { pageShift } from './layer-pages.ts'
import { summaryCapacity } from './summary.ts'
import { mostPositions } from './zones.ts'

/**
 * How the rows of an offloaded session lie. A layer's rows on the device are, a head, [sink | window]: the first tokens and
 * the latest ones without a gap; behind those of all heads one cache of hot rows for them together. All rows are in pages
 * on the host.
 */
export interface OffloadPlan {
  /** Rows a head of each part; of the hot ones a head may have more or fewer. */
  readonly sink: number
  readonly window: number
  readonly hot: number
  /** Tokens that one append or prefill writes at once; the window has room for them beside what a step reads. */
  readonly chunk: number
  /** Rows a head that pass through the device together where earlier ones are read in order. One staging a session. */
  readonly staging: number
  /** Tokens a page, as a power of two, and bytes of a page. */
  readonly shift: number
  readonly pageBytes: number
}

/** Tokens by which the window exceeds what a step reads, where the policy asks for no more: it moves that seldom. */
const MOST_SLACK = 4096

export function offloadPlan(config: SessionConfig, store: Dtype): OffloadPlan {
  const { capacity, policy, shape } = config
  const { local, update, k } = policy
  const row = shape.headDim * dtypeBytes(store)
  const sink = Math.min(policy.sink, capacity)
  const chunk = Math.min(capacity, MOST_SLACK, Math.max(4 * update, local))
  const read = Math.max(mostPositions(config) - sink, local + update)
  const window = Math.min(capacity - sink, read + chunk)
  const hot = Math.min(policy.hotRows ?? Math.max(4 * k, 1024), summaryCapacity(config))
  const staging = Math.ceil(Math.min(4 * chunk, capacity) / 16) * 16
  const shift = pageShift(shape.kvHeads, row, capacity)
  return { sink, window, hot, chunk, staging, shift, pageBytes: (2 * row * shape.kvHeads) << shift }
}

/** Bytes that a plan takes when the session is full. */
export function offloadBytes(config: SessionConfig, store: Dtype) {
  const { sink, window, hot, staging, shift, pageBytes } = offloadPlan(config, store)
  const { layers, kvHeads, headDim } = config.shape
  const wide = 2 * kvHeads * headDim * dtypeBytes(store)
  return {
    rows: wide * (layers * (sink + window) + staging),
    hot: wide * layers * hot,
    pages: layers * Math.ceil(config.capacity / 2 ** shift) * pageBytes,
  }
}
