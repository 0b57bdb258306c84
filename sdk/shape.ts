/** Dimensions of a subspace: the m of the design, fixed so that a subspace's signs are one byte. */
export const M = 8

/** Axis sizes of a session. Axis letters as used in every comment of this package. */
export interface Shape {
  /** L: decoder layers. */
  readonly layers: number
  /** Hq: query heads. */
  readonly queryHeads: number
  /** H: key/value heads. */
  readonly kvHeads: number
  /** G = Hq / H: query heads that share a key/value head; query head i belongs to KV head floor(i / G). */
  readonly group: number
  /** d: head dimension, a multiple of 8 from 8 to 256. */
  readonly headDim: number
  /** D: d padded with zeros to a power of two. */
  readonly paddedDim: number
  /** B = D / 8: subspaces. */
  readonly subspaces: number
}

/** The least power of two that is at least `headDim`. */
export function paddedDim(headDim: number): number {
  return 2 ** Math.ceil(Math.log2(headDim))
}

/** Derives G, D and B. The arguments are taken as already validated (see `parseConfig`). */
export function makeShape(layers: number, queryHeads: number, kvHeads: number, headDim: number): Shape {
  const D = paddedDim(headDim)
  return { layers, queryHeads, kvHeads, group: queryHeads / kvHeads, headDim, paddedDim: D, subspaces: D / M }
}

/** Bytes of one key's summary: four bit planes, B weights, a bf16 scale, one more byte with `normWeighted`. */
export function summaryBytes(paddedDim: number, normWeighted = false): number {
  return paddedDim / 2 + paddedDim / M + 2 + (normWeighted ? 1 : 0)
}
