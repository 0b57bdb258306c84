import { expect } from 'vitest'
import type { Bytes } from '../../sdk/bytes.ts'
import { loadRow, magnitudeByte, NO_EXPONENT, signByte, weightByte } from '../../sdk/codec/codec.ts'
import { LEVELS } from '../../sdk/codec/levels.ts'
import { bf16ToF32, f32ToBf16 } from '../../sdk/dtype.ts'
import type { EncodeJob } from '../../sdk/kernels/encode.ts'
import { exponentOf, rotateRow } from '../../sdk/kernels/rotate.ts'

/** How near a rounding edge, relative to the value, two backends may fall on different sides. */
export const EDGE = 1e-6

/** The least bf16 of at least `v`, never subnormal; 0 for 0. */
function leastBf16(v: number): number {
  if (v === 0) return 0
  let bits = f32ToBf16(v)
  while (bf16ToF32(bits) < v) bits++
  while (bits > 0 && bf16ToF32(bits - 1) >= v) bits--
  return Math.max(0x80, bits)
}

/** Fails unless lo ≤ got ≤ hi. */
function within(got: number, lo: number, hi: number, what: () => string): void {
  if (got >= lo && got <= hi) return
  expect.fail(`${what()}: got ${got}, want ${lo === hi ? lo : `${lo} to ${hi}`}`)
}

/**
 * Checks every code of a job against the definition in f64, from the f32 butterflies: signs to the bit, magnitude
 * indices, scale and weights up to 1e-6 around a rounding edge. Each stage takes the stored result of the one before,
 * so that one tolerated step is not counted twice.
 */
export function expectCodes(job: EncodeJob<Bytes>): void {
  const { keys, heads, from, count, rotation, summary: s, at } = job
  const { d, D } = rotation
  const x = new Float32Array(d)
  const y = new Float32Array(D)
  const counts = new Uint32Array(heads * (D / 8) * 256)
  for (let h = 0; h < heads; h++) {
    const norms: number[] = []
    for (let i = 0; i < count; i++) {
      loadRow(keys, h, from + i, x)
      const e = exponentOf(x, 0, d)
      rotateRow(x, 0, d, e, rotation.signs.i8, y, 0, D)
      expectKey(job, h, at + i, y, e)
      norms.push(Math.hypot(...y) * (2 ** e / Math.sqrt(D)))
      for (let b = 0; b < D / 8; b++) counts[(h * (D / 8) + b) * 256 + s.signs.u8[signByte(s, h, at + i, b)]]++
    }
    if (s.norms) expectNorms(job, h, norms)
  }
  if (s.counts)
    for (let i = 0; i < counts.length; i++) within(s.counts.u32[i], counts[i], counts[i], () => `count ${i}`)
}

function expectKey(job: EncodeJob<Bytes>, h: number, n: number, y: Float32Array, e: number): void {
  const { summary: s } = job
  const B = s.D / 8
  const weights = new Float64Array(B)
  for (let b = 0; b < B; b++) {
    const part = y.subarray(8 * b, 8 * b + 8)
    const r = Math.hypot(...part)
    let projection = 0
    for (let j = 0; j < 8; j++) {
      const where = () => `head ${h} key ${n} coordinate ${8 * b + j}`
      within((s.signs.u8[signByte(s, h, n, b)] >> j) & 1, +(part[j] >= 0), +(part[j] >= 0), () => `sign at ${where()}`)
      const bit = (p: number) => ((s.magnitudes.u8[magnitudeByte(s, h, n, p, b)] >> j) & 1) << p
      const index = bit(0) | bit(1) | bit(2)
      const u = r > 0 ? Math.abs(part[j]) / r : 0
      const cell = (v: number) => LEVELS.thresholds.filter((t) => t <= v).length
      within(index, cell(u - EDGE), r > 0 ? cell(u + EDGE) : 0, () => `magnitude at ${where()} (u = ${u})`)
      projection += LEVELS.centers[index] * Math.abs(part[j])
    }
    weights[b] = r > 0 ? ((r * r) / (projection * Math.sqrt(s.D))) * 2 ** e : 0
  }
  const least = Math.max(...weights) / 255
  const scale = s.scales.u16[h * s.cap + n]
  within(scale, leastBf16(least * (1 - EDGE)), leastBf16(least * (1 + EDGE)), () => `scale of head ${h} key ${n}`)
  for (let b = 0; b < B; b++) {
    const units = scale === 0 ? 0 : weights[b] / bf16ToF32(scale)
    const [lo, hi] = [units * (1 - EDGE), units * (1 + EDGE)].map((v) => Math.min(255, Math.round(v)))
    within(s.weights.u8[weightByte(s, h, n, b)], lo, hi, () => `weight ${b} of head ${h} key ${n} (${units})`)
  }
}

function expectNorms(job: EncodeJob<Bytes>, h: number, norms: readonly number[]): void {
  const { norms: bytes, normExp, cap } = job.summary
  const e = normExp!.i32[h]
  const largest = Math.max(0, ...norms)
  const need = (v: number) => (v > 0 ? Math.floor(Math.log2(v)) - 7 : NO_EXPONENT)
  within(e, need(largest * (1 - EDGE)), need(largest * (1 + EDGE)), () => `norm exponent of head ${h}`)
  norms.forEach((norm, i) => {
    const [lo, hi] = [1 - EDGE, 1 + EDGE].map((f) => Math.min(255, Math.floor(norm * f * 2 ** -e)))
    within(bytes!.u8[h * cap + job.at + i], lo, hi, () => `norm byte of head ${h} key ${job.at + i}`)
  })
}
