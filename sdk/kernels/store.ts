import type { Buf, Bytes } from '../bytes.ts'
import type { Rows } from '../codec/codec.ts'
import { type Dtype, f32Bits, fromF32, toF32 } from '../dtype.ts'

/** Stores tokens that are on the backend already as rows, in the rows' dtype. Other rows stay as they are. */
export interface StoreJob<B extends Buf = Buf> {
  /** [H, T, d] of `dtype`. */
  readonly tokens: B
  readonly dtype: Dtype
  readonly heads: number
  /** T. */
  readonly count: number
  /** Out: positions at..at + T − 1 of every head. */
  readonly rows: Rows<B>
  readonly at: number
  /** In and out: one u32 that grows by how many values were stored as 0. Jobs of one call may share it. */
  readonly refused: B
}

/**
 * Reference. Round to nearest even; NaN, ±Inf and what would round to ±Inf are recognized by exponent bits and stored as
 * 0. Equal to the bit on every backend, −0 and subnormals included.
 */
export function store(job: StoreJob<Bytes>): void {
  const { tokens, dtype, heads, count, rows, at } = job
  const size = count * rows.d
  const src = dtype === 'f32' ? tokens.f32 : tokens.u16
  const x = new Float32Array(size)
  const out = rows.dtype === 'f32' ? rows.buf.u32 : rows.buf.u16
  const top = { f32: 0x7f800000, f16: 0x7c00, bf16: 0x7f80 }[rows.dtype]
  for (let h = 0; h < heads; h++) {
    toF32(dtype, src, h * size, size, x)
    const to = (h * rows.cap + at) * rows.d
    for (let i = 0; i < size; i++) {
      const bits = rows.dtype === 'f32' ? f32Bits(x[i]) : fromF32(rows.dtype, x[i])
      const finite = (bits & top) !== top
      out[to + i] = finite ? bits : 0
      if (!finite) job.refused.u32[0]++
    }
  }
}
