import type { Bytes } from '../../sdk/bytes.ts'
import type { Rows } from '../../sdk/codec/codec.ts'
import { bf16ToF32, type Dtype, f16ToF32 } from '../../sdk/dtype.ts'

/** How far attention may be from the reference, as a share of max|V|. */
export const ATTENTION: Record<Dtype, number> = { f32: 1e-4, f16: 2e-3, bf16: 2e-3 }

/** One element of stored rows. */
export function element(rows: Rows<Bytes>, h: number, n: number, j: number): number {
  const at = (h * rows.cap + n) * rows.d + j
  if (rows.dtype === 'f32') return rows.buf.f32[at]
  return rows.dtype === 'f16' ? f16ToF32(rows.buf.u16[at]) : bf16ToF32(rows.buf.u16[at])
}

/** Softmax attention of one query over a list of positions by its definition, in f64. */
export function attention(
  query: ArrayLike<number>,
  keys: Rows<Bytes>,
  values: Rows<Bytes>,
  h: number,
  positions: readonly number[],
  scale: number,
): { output: number[]; lse: number } {
  const d = keys.d
  const scores = positions.map((n) => {
    let dot = 0
    for (let j = 0; j < d; j++) dot += query[j] * element(keys, h, n, j)
    return dot * scale
  })
  const max = Math.max(...scores)
  const p = scores.map((s) => Math.exp(s - max))
  const sum = p.reduce((a, b) => a + b, 0)
  const output = Array.from({ length: d }, (_, j) =>
    positions.length === 0 ? 0 : positions.reduce((acc, n, i) => acc + (p[i] / sum) * element(values, h, n, j), 0),
  )
  return { output, lse: positions.length === 0 ? Number.NEGATIVE_INFINITY : max + Math.log(sum) }
}

/** The largest |v| of rows [0, count). */
export function largest(values: Rows<Bytes>, heads: number, count: number): number {
  let max = 0
  for (let h = 0; h < heads; h++)
    for (let n = 0; n < count; n++)
      for (let j = 0; j < values.d; j++) max = Math.max(max, Math.abs(element(values, h, n, j)))
  return max
}

/** How far a log-sum-exp may be off: 1e-4, or what f32 can say of one that large. */
export function lseTolerance(lse: number): number {
  return Math.max(1e-4, Math.abs(lse) * 2 ** -22)
}
