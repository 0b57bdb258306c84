import type { Buf, Bytes } from '../bytes.ts'
import {
  loadRow,
  magnitudeByte,
  NO_EXPONENT,
  type Rotation,
  type Rows,
  type Summary,
  signByte,
  weightByte,
} from '../codec/codec.ts'
import { LEVELS } from '../codec/levels.ts'
import { bitsF32, f32Bits } from '../dtype.ts'
import { M } from '../shape.ts'
import { exponentOf, rotateRow } from './rotate.ts'

/** Encodes `count` stored keys of every head into the summary, rotation included. */
export interface EncodeJob<B extends Buf = Buf> {
  readonly keys: Rows<B>
  readonly heads: number
  /** First key's position in `keys`. */
  readonly from: number
  readonly count: number
  readonly rotation: Rotation<B>
  /** Out. `counts` and `norms` are updated where present. */
  readonly summary: Summary<B>
  /** First key's index in the summary; keys are encoded once and in order, so [0, at) is already there. */
  readonly at: number
}

/**
 * Reference; lengths in f64, signs from the f32 butterflies.
 * A subspace's weight is w_b = ‖k‖ r_b / Σ_j level_j |u_j| = 2^e ‖y_b‖² / (√D Σ_j level_j |y_j|);
 * a subspace of zeros has weight 0, magnitude indices 0 and, as −0 and 0 count as ≥ 0, sign bits 1.
 * Magnitude index = how many thresholds are ≤ |u_j|.
 */
export function encode(job: EncodeJob<Bytes>): void {
  const { keys, rotation, summary, heads, count } = job
  const { d, D } = rotation
  const x = new Float32Array(d)
  const y = new Float32Array(D)
  for (let h = 0; h < heads; h++) {
    if (summary.norms) raiseNormExponent(job, h)
    for (let i = 0; i < count; i++) {
      loadRow(keys, h, job.from + i, x)
      const e = exponentOf(x, 0, d)
      rotateRow(x, 0, d, e, rotation.signs.i8, y, 0, D)
      encodeKey(y, e, summary, h, job.at + i)
      if (summary.norms && summary.normExp)
        summary.norms.u8[h * summary.cap + job.at + i] = Math.floor(keyNorm(x) * 2 ** -summary.normExp.i32[h])
    }
  }
}

function encodeKey(y: Float32Array, e: number, s: Summary<Bytes>, h: number, n: number): void {
  const B = s.D / M
  const weights = new Float64Array(B)
  for (let b = 0; b < B; b++) {
    const { id, planes, weight } = encodeSubspace(y, b * M)
    s.signs.u8[signByte(s, h, n, b)] = id
    for (let p = 0; p < 3; p++) s.magnitudes.u8[magnitudeByte(s, h, n, p, b)] = planes[p]
    if (s.counts) s.counts.u32[(h * B + b) * 256 + id]++
    weights[b] = weight / Math.sqrt(s.D)
  }
  const { bits, unit } = weightScale(Math.max(...weights) / 255, e)
  s.scales.u16[h * s.cap + n] = bits
  for (let b = 0; b < B; b++)
    s.weights.u8[weightByte(s, h, n, b)] = unit === 0 ? 0 : Math.min(255, Math.round(weights[b] / unit))
}

/** Sign byte, magnitude planes and unscaled weight ‖y_b‖² / Σ level |y_j| of one subspace. */
function encodeSubspace(y: Float32Array, at: number) {
  let square = 0
  for (let j = 0; j < M; j++) square += y[at + j] * y[at + j]
  const r = Math.sqrt(square)
  const planes = [0, 0, 0]
  let id = 0
  let projection = 0
  for (let j = 0; j < M; j++) {
    const a = Math.abs(y[at + j])
    if (y[at + j] >= 0) id |= 1 << j
    let index = 0
    while (r > 0 && index < 7 && a >= LEVELS.thresholds[index] * r) index++
    for (let p = 0; p < 3; p++) planes[p] |= ((index >> p) & 1) << j
    projection += LEVELS.centers[index] * a
  }
  return { id, planes, weight: r > 0 ? square / projection : 0 }
}

/**
 * The least bf16 that is at least `least` · 2^e, never subnormal: bits, and its value over 2^e.
 * Exact for every finite key: the exponents are added as integers.
 */
export function weightScale(least: number, e: number): { bits: number; unit: number } {
  if (least === 0) return { bits: 0, unit: 0 }
  const single = f32Bits(least)
  const above = bitsF32(single) < least ? single + 1 : single
  const bits = ((above + 0xffff) >>> 16) + e * 128
  // Below the least normal bf16 the scale stays there; the u8 then hold what is left.
  const clamped = Math.max(bits, 0x80)
  return {
    bits: clamped,
    unit: bitsF32((((clamped & 0x7f) | (127 << 7)) << 16) >>> 0) * 2 ** ((clamped >> 7) - 127 - e),
  }
}

/** Raises e of head h to what the new keys need and shifts the bytes already there: floor of floor. */
function raiseNormExponent(job: EncodeJob<Bytes>, h: number): void {
  const { norms, normExp, cap } = job.summary
  if (!norms || !normExp) return
  const x = new Float32Array(job.rotation.d)
  let need = NO_EXPONENT
  for (let i = 0; i < job.count; i++) {
    loadRow(job.keys, h, job.from + i, x)
    const norm = keyNorm(x)
    if (norm > 0) need = Math.max(need, binaryExponent(norm) - 7)
  }
  const now = normExp.i32[h]
  if (need <= now) return
  normExp.i32[h] = need
  const shift = Math.min(8, need - now)
  for (let n = 0; n < job.at; n++) norms.u8[h * cap + n] >>= shift
}

/**
 * ‖k‖, the coordinates that the rotation drops counted as 0. From the key itself, for the exponent as for the byte:
 * the f32 butterflies may round a length up to the next power of two, and a byte of 256 would wrap.
 */
function keyNorm(x: Float32Array): number {
  const least = Math.max(2 ** -126, 2 ** (exponentOf(x, 0, x.length) - 60))
  let sum = 0
  for (const v of x) if (Math.abs(v) >= least) sum += v * v
  return Math.sqrt(sum)
}

/** The e with 2^e ≤ x < 2^(e+1); `log2` alone may round up. */
function binaryExponent(x: number): number {
  const e = Math.floor(Math.log2(x))
  return 2 ** e > x ? e - 1 : e
}
