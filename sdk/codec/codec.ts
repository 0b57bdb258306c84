import type { Buf, Bytes } from '../bytes.ts'
import { type Dtype, toF32 } from '../dtype.ts'
import { M, paddedDim } from '../shape.ts'

/** Full rows of one layer: [H, cap, d] in the store's dtype, by position in the sequence. */
export interface Rows<B extends Buf = Buf> {
  readonly buf: B
  readonly dtype: Dtype
  /** Tokens between two heads. */
  readonly cap: number
  readonly d: number
}

/** One stored row, a key or a value, as f32. */
export function loadRow(rows: Rows<Bytes>, h: number, n: number, x: Float32Array): void {
  const src = rows.dtype === 'f32' ? rows.buf.f32 : rows.buf.u16
  toF32(rows.dtype, src, (h * rows.cap + n) * rows.d, rows.d, x)
}

/**
 * How a backend lays out a summary. Canonical is `{ block: 1, align: 1 }`: planes [H, cap, D/8].
 * With `block` P, the sign plane is [H, cap/P, D/8, P]: byte b of P consecutive keys side by side.
 * `align` rounds each key's bytes in the sign plane, each magnitude plane and the weights up to that many.
 */
export interface SummaryLayout {
  readonly block: 1 | 16
  readonly align: 1 | 4
}

/** The codes of one layer's retrieval zone, index 0 being its first token. */
export interface Summary<B extends Buf = Buf> {
  /** Keys between two heads; a multiple of 16. */
  readonly cap: number
  readonly D: number
  readonly layout: SummaryLayout
  /** Sign plane: bit j of byte b is coordinate 8b + j, set when ≥ 0; byte b is the centroid id of subspace b. */
  readonly signs: B
  /** [H, cap, 3, D/8]: plane p holds bit p of the magnitude index, bit order as in the sign plane. */
  readonly magnitudes: B
  /** [H, cap, B] u8. */
  readonly weights: B
  /** [H, cap] bf16 bits. */
  readonly scales: B
  /** [H, cap] u8 = floor(‖k‖ · 2^−e), with `normWeighted`. */
  readonly norms?: B
  /** [H] i32: e of each head; −1000 before the first nonzero key. */
  readonly normExp?: B
  /** [H, B, 256] u32 keys per centroid, for `collision`. */
  readonly counts?: B
}

/** Value of `normExp` before any nonzero key. */
export const NO_EXPONENT = -1000

/** Bytes of each part of a summary for `heads` heads of `cap` keys. */
export function summaryParts(heads: number, cap: number, D: number, layout: SummaryLayout) {
  const keys = heads * cap
  const plane = strideOf(D / 8, layout)
  return {
    signs: keys * plane,
    magnitudes: keys * 3 * plane,
    weights: keys * strideOf(D / M, layout),
    scales: keys * 2,
    norms: keys,
    normExp: heads * 4,
    counts: heads * (D / M) * 256 * 4,
  }
}

/** Bytes between two keys whose own size is `bytes`. */
export function strideOf(bytes: number, layout: SummaryLayout): number {
  return Math.ceil(bytes / layout.align) * layout.align
}

/** Where sign byte b of key n of head h lives. */
export function signByte(s: Summary, h: number, n: number, b: number): number {
  const P = s.layout.block
  const S = strideOf(s.D / 8, s.layout)
  return ((h * s.cap) / P + Math.floor(n / P)) * P * S + b * P + (n % P)
}

/** Where plane p, byte b of key n of head h lives among the magnitudes. */
export function magnitudeByte(s: Summary, h: number, n: number, p: number, b: number): number {
  return ((h * s.cap + n) * 3 + p) * strideOf(s.D / 8, s.layout) + b
}

/** Where weight b of key n of head h lives. */
export function weightByte(s: Summary, h: number, n: number, b: number): number {
  return (h * s.cap + n) * strideOf(s.D / M, s.layout) + b
}

/** What every kernel that rotates needs to know. */
export interface Rotation<B extends Buf = Buf> {
  readonly d: number
  readonly D: number
  /** [D] i8 of ±1. */
  readonly signs: B
}

/** A rotation for head dimension `d` over a buffer that holds its signs. */
export function makeRotation<B extends Buf>(d: number, signs: B): Rotation<B> {
  return { d, D: paddedDim(d), signs }
}
