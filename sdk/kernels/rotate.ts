import type { Buf, Bytes } from '../bytes.ts'
import type { Rotation } from '../codec/codec.ts'
import { f32Bits } from '../dtype.ts'

/** Rotates R rows: scale by a power of two, flip signs, Walsh–Hadamard. Nothing is normalized. */
export interface RotateJob<B extends Buf = Buf> {
  /** [R, d] f32, finite. */
  readonly x: B
  readonly rows: number
  readonly rotation: Rotation<B>
  /** Out: [R, D] f32, the butterflies of x · 2^−e; the true rotation is y · 2^e / √D. */
  readonly y: B
  /** Out: [R] i32, e. */
  readonly exponents: B
}

/** Coordinates below this, after scaling the largest into [1, 2), become 0. */
export const TINY = 2 ** -60

/** Reference. f32 additions (`Math.fround` after each), stages h = 1, 2, 4, … in place, Sylvester order. */
export function rotate(job: RotateJob<Bytes>): void {
  const { d, D, signs } = job.rotation
  for (let r = 0; r < job.rows; r++) {
    const e = exponentOf(job.x.f32, r * d, d)
    job.exponents.i32[r] = e
    rotateRow(job.x.f32, r * d, d, e, signs.i8, job.y.f32, r * D, D)
  }
}

/** The e with 2^e ≤ max|x| < 2^(e+1), from the bits; 0 where every coordinate is zero or subnormal. */
export function exponentOf(x: Float32Array, at: number, count: number): number {
  let max = 0
  for (let j = 0; j < count; j++) max = Math.max(max, Math.abs(x[at + j]))
  const biased = f32Bits(max) >>> 23
  return biased === 0 ? 0 : biased - 127
}

/** One row; `y` [at, at + D) is overwritten. Coordinates that are subnormal or below 2^(e−60) count as 0. */
export function rotateRow(
  x: Float32Array,
  xAt: number,
  d: number,
  e: number,
  signs: Int8Array,
  y: Float32Array,
  yAt: number,
  D: number,
): void {
  const scale = 2 ** -e
  for (let j = 0; j < D; j++) {
    const v = j < d ? x[xAt + j] : 0
    const scaled = v * scale
    const kept = Math.abs(v) >= 2 ** -126 && Math.abs(scaled) >= TINY
    y[yAt + j] = kept ? scaled * signs[j] : 0
  }
  butterflies(y, yAt, D)
}

const addF32 = (a: number, b: number) => Math.fround(a + b)

/**
 * The Walsh–Hadamard transform in place: D·log2(D) additions.
 * @param add the addition, f32 unless a test counts it
 */
export function butterflies(
  y: Float32Array,
  at: number,
  D: number,
  add: (a: number, b: number) => number = addF32,
): void {
  for (let h = 1; h < D; h *= 2)
    for (let i = at; i < at + D; i += 2 * h)
      for (let j = i; j < i + h; j++) {
        const a = y[j]
        const b = y[j + h]
        y[j] = add(a, b)
        y[j + h] = add(a, -b)
      }
}
