import type { Rows, Summary } from '../codec/codec.ts'
import type { OffloadedLayer, Segment } from './offload.ts'

/** One layer's rows, summary and length. Owned by a `Cache`. */
export interface LayerCache {
  readonly keys: Rows
  readonly values: Rows
  readonly summary: Summary
  /** Where rows are offloaded: which of them `keys` and `values` hold, and where. Without it a row's place is its position. */
  readonly offload?: OffloadedLayer
  length: number
  /** At least the largest |k| held, but for those that came in GPUBuffers: with the queries' it bounds the products. */
  maxKey: number
  /** Whether a truncation may have left `maxKey` above that. */
  loose: boolean
  /** Whether counts and norms are still those of a zone that was longer: see `Cache.mend`. */
  stale: boolean
}

/** Rows [from, to) of a layer in order, as pieces on the device; a piece holds only until the next one is asked for. */
export async function* segmentsOf(layer: LayerCache, from: number, to: number): AsyncGenerator<Segment> {
  if (layer.offload) yield* layer.offload.segments(from, to)
  else yield { keys: layer.keys, values: layer.values, from, count: to - from, at: from }
}
