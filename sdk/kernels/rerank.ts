import type { Buf, Bytes } from '../bytes.ts'
import { loadRow, magnitudeByte, type Rows, type Summary, signByte, weightByte } from '../codec/codec.ts'
import { LEVELS } from '../codec/levels.ts'
import { bf16ToF32 } from '../dtype.ts'
import { M } from '../shape.ts'

/** Estimates ⟨k, q⟩ for the candidates of every head, or for every key. */
export interface RerankJob<B extends Buf = Buf> {
  /** `codes`: RSQ-IP from the summary. `rows`: the exact product with the stored keys, for audits and measurements. */
  readonly source:
    | { readonly codes: Summary<B>; readonly y: B; readonly scales: B }
    | { readonly rows: Rows<B>; readonly base: number; readonly chosen: B; readonly scale: number }
  readonly heads: number
  readonly choosers: number
  /** [H, C] u32 indices in the zone; null for the keys 0..C−1. */
  readonly ids: B | null
  /** C. */
  readonly count: number
  /** Out: [H, C] f32, the maximum over choosers. */
  readonly estimates: B
}

/**
 * Reference; sums in f64. RSQ-IP: ⟨k, q⟩ ≈ Σ_b w_b ⟨v_b, q̃_b⟩, v the dequantized direction ±level, w = u8 · scale,
 * q̃ = y · scales[h] the true rotated query.
 */
export function rerank(job: RerankJob<Bytes>): void {
  const { source, heads, choosers, count } = job
  for (let h = 0; h < heads; h++)
    for (let i = 0; i < count; i++) {
      const n = job.ids ? job.ids.u32[h * count + i] : i
      let best = Number.NEGATIVE_INFINITY
      for (let c = 0; c < choosers; c++) {
        const r = h * choosers + c
        const value =
          'codes' in source
            ? estimate(source.codes, h, n, source.y.f32, r * source.codes.D) * source.scales.f32[h]
            : exactProduct(source.rows, h, source.base + n, source.chosen.f32, r * source.rows.d) * source.scale
        best = Math.max(best, value)
      }
      job.estimates.f32[h * count + i] = best
    }
}

/**
 * Σ_b w_b ⟨v_b, y_b⟩ of one key.
 * @param weights the stored u8 · scale unless given, [B] f64-able, for checks against f32 weights
 */
export function estimate(
  s: Summary<Bytes>,
  h: number,
  n: number,
  y: Float32Array,
  at: number,
  weights?: ArrayLike<number>,
): number {
  const scale = bf16ToF32(s.scales.u16[h * s.cap + n])
  let total = 0
  for (let b = 0; b < s.D / M; b++) {
    const w = weights ? weights[b] : s.weights.u8[weightByte(s, h, n, b)] * scale
    const id = s.signs.u8[signByte(s, h, n, b)]
    const planes = [0, 1, 2].map((p) => s.magnitudes.u8[magnitudeByte(s, h, n, p, b)])
    let dot = 0
    for (let j = 0; j < M; j++) {
      const index = ((planes[0] >> j) & 1) | (((planes[1] >> j) & 1) << 1) | (((planes[2] >> j) & 1) << 2)
      const v = LEVELS.centers[index] * y[at + b * M + j]
      dot += (id >> j) & 1 ? v : -v
    }
    total += w * dot
  }
  return total
}

function exactProduct(rows: Rows<Bytes>, h: number, n: number, q: Float32Array, at: number): number {
  const k = new Float32Array(rows.d)
  loadRow(rows, h, n, k)
  let sum = 0
  for (let j = 0; j < rows.d; j++) sum += k[j] * q[at + j]
  return sum
}
