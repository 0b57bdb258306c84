import { CENTER_PAIRS, scratch, THRESHOLDS } from './arena'
import { elementBytes, pow2, rowF32 } from './lanes'
import { prepareLevels } from './levels'
import { raiseNormExponent, squaredNorm } from './norms'
import { exponentOf, rotateRow, signFlips } from './rotate'

/*
 * A subspace is two vectors of f32 butterflies, eight coordinates, low half and high half:
 *
 *   | y0 y1 y2 y3 | y4 y5 y6 y7 |   ≥ 0 → bitmask 4 + 4 → sign byte
 *   | u0 u1 u2 u3 | u4 u5 u6 u7 |   ≥ thresholds 1…7, subtract the true lanes → index 0…7
 *   | i0 i1 i2 i3 i4 i5 i6 i7   |   i16: shift bit p to the top → bitmask → byte of plane p
 *   | i0,i1 | i2,i3 | i4,i5 | i6,i7 |   16·i + 128·i′ → the place of two levels, side by side as f64
 *
 * Lengths and weights are f64 (two lanes), as the reference has them.
 */
export function encode(
  keys: usize,
  dtype: i32,
  keysCap: i32,
  heads: i32,
  from: i32,
  count: i32,
  d: i32,
  D: i32,
  rotation: usize,
  cap: i32,
  at: i32,
  signs: usize,
  magnitudes: usize,
  weights: usize,
  scales: usize,
  norms: usize,
  normExp: usize,
  counts: usize,
): void {
  const B = D >> 3
  const flips = scratch(((<usize>D) << 3) + ((<usize>d) << 2) + ((<usize>B) << 4) + 16)
  const y = flips + ((<usize>D) << 2)
  const spare = y + ((<usize>D) << 2)
  const w = spare + ((<usize>d) << 2)
  const row = <usize>d * elementBytes(dtype)
  signFlips(rotation, D, flips)
  prepareLevels()
  for (let h = 0; h < heads; h++) {
    let key = keys + (<usize>h * <usize>keysCap + <usize>from) * row
    const head = <usize>h * <usize>cap
    if (norms) raiseNormExponent(key, dtype, d, count, spare, norms + head, at, normExp + ((<usize>h) << 2))
    const tally = counts ? counts + ((<usize>h * <usize>B) << 10) : 0
    for (let n = at; n < at + count; n++, key += row) {
      const x = rowF32(key, dtype, d, spare)
      const e = exponentOf(x, d)
      rotateRow(x, d, D, e, flips, y)
      const slot = head + n
      const block = signs + (head + (n & ~15)) * B + (n & 15)
      encodeSubspaces(y, B, block, magnitudes + slot * 3 * B, w, tally)
      store<u16>(scales + (slot << 1), encodeWeights(w, B, e, Math.sqrt(<f64>D), weights + slot * B))
      if (norms) {
        const unit = pow2(-load<i32>(normExp + ((<usize>h) << 2)))
        store<u8>(norms + slot, <u8>(Math.sqrt(squaredNorm(x, d)) * unit))
      }
    }
  }
}

/** Signs and planes of one key, ‖y_b‖² and Σ level |y_j| of its subspaces, [2, B] f64 at `w`. */
function encodeSubspaces(y: usize, B: i32, signs: usize, planes: usize, w: usize, tally: usize): void {
  const counted = tally !== 0
  for (let b: usize = 0; b < <usize>B; b++, y += 32, tally += 1024) {
    const low = v128.load(y)
    const high = v128.load(y, 16)
    const zero = f32x4.splat(0)
    const sign = i32x4.bitmask(f32x4.ge(low, zero)) | (i32x4.bitmask(f32x4.ge(high, zero)) << 4)
    store<u8>(signs + (b << 4), sign)
    if (counted) {
      const cell = tally + ((<usize>sign) << 2)
      store<u32>(cell, load<u32>(cell) + 1)
    }
    const a = f32x4.abs(low)
    const c = f32x4.abs(high)
    const a0 = f64x2.promote_low_f32x4(a)
    const a1 = f64x2.promote_low_f32x4(i8x16.shuffle(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7))
    const c0 = f64x2.promote_low_f32x4(c)
    const c1 = f64x2.promote_low_f32x4(i8x16.shuffle(c, c, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7))
    const square2 = f64x2.add(
      f64x2.add(f64x2.mul(a0, a0), f64x2.mul(a1, a1)),
      f64x2.add(f64x2.mul(c0, c0), f64x2.mul(c1, c1)),
    )
    const square = f64x2.extract_lane(square2, 0) + f64x2.extract_lane(square2, 1)
    const unit = f32x4.splat(square > 1e-30 ? 1 / sqrt<f32>(<f32>square) : inverseRoot(square))
    const index = i16x8.neg(i16x8.narrow_i32x4_s(cellOf(f32x4.mul(a, unit)), cellOf(f32x4.mul(c, unit))))
    const two = i8x16.bitmask(i8x16.narrow_i16x8_s(i16x8.shl(index, 15), i16x8.shl(index, 14)))
    store<u8>(planes + b, two)
    store<u8>(planes + B + b, two >> 8)
    store<u8>(planes + 2 * B + b, i16x8.bitmask(i16x8.shl(index, 13)))
    const at = i32x4.dot_i16x8_s(index, i16x8(16, 128, 16, 128, 16, 128, 16, 128))
    const projection2 = f64x2.add(
      f64x2.add(
        f64x2.mul(a0, v128.load(CENTER_PAIRS + i32x4.extract_lane(at, 0))),
        f64x2.mul(a1, v128.load(CENTER_PAIRS + i32x4.extract_lane(at, 1))),
      ),
      f64x2.add(
        f64x2.mul(c0, v128.load(CENTER_PAIRS + i32x4.extract_lane(at, 2))),
        f64x2.mul(c1, v128.load(CENTER_PAIRS + i32x4.extract_lane(at, 3))),
      ),
    )
    const projection = f64x2.extract_lane(projection2, 0) + f64x2.extract_lane(projection2, 1)
    store<f64>(w + (b << 3), square)
    store<f64>(w + ((<usize>B + b) << 3), projection)
  }
}

/** 1/√x where f32 may not hold x; 0 for 0. */
function inverseRoot(x: f64): f32 {
  return x > 0 ? <f32>(1 / Math.sqrt(x)) : 0
}

/** How many of the seven thresholds each lane reaches, negated. */
function cellOf(u: v128): v128 {
  let index = f32x4.ge(u, v128.load(THRESHOLDS))
  index = i32x4.add(index, f32x4.ge(u, v128.load(THRESHOLDS, 16)))
  index = i32x4.add(index, f32x4.ge(u, v128.load(THRESHOLDS, 32)))
  index = i32x4.add(index, f32x4.ge(u, v128.load(THRESHOLDS, 48)))
  index = i32x4.add(index, f32x4.ge(u, v128.load(THRESHOLDS, 64)))
  index = i32x4.add(index, f32x4.ge(u, v128.load(THRESHOLDS, 80)))
  return i32x4.add(index, f32x4.ge(u, v128.load(THRESHOLDS, 96)))
}

/** u8 weights ‖y_b‖² / Σ level |y_j| against the least bf16 scale at or above max/255; returns that scale's bits. */
function encodeWeights(w: usize, B: i32, e: i32, root: f64, out: usize): u16 {
  let most2 = f64x2.splat(0)
  for (let b: usize = 0; b < <usize>B; b += 2) {
    const pair = w + (b << 3)
    // A subspace of zeros gives 0/0; pmax keeps its first operand then.
    const weight = f64x2.pmax(f64x2.splat(0), f64x2.div(v128.load(pair), v128.load(pair + ((<usize>B) << 3))))
    v128.store(pair, weight)
    most2 = f64x2.pmax(most2, weight)
  }
  let most = f64x2.extract_lane(most2, 0)
  if (B > 1) most = max<f64>(most, f64x2.extract_lane(most2, 1))
  const least = most / root / 255
  if (least === 0) {
    memory.fill(out, 0, B)
    return 0
  }
  const single = reinterpret<u32>(<f32>least)
  const above = <f64>reinterpret<f32>(single) < least ? single + 1 : single
  const bits = max<i32>(<i32>((above + 0xffff) >> 16) + e * 128, 0x80)
  const unit = <f64>reinterpret<f32>(((bits & 0x7f) | (127 << 7)) << 16) * pow2((bits >> 7) - 127 - e)
  const inverse = f64x2.splat(1 / (root * unit))
  for (let b: usize = 0; b < <usize>B; b += 2) {
    const exact = f64x2.mul(v128.load(w + (b << 3)), inverse)
    const steps = f64x2.pmin(f64x2.floor(f64x2.add(exact, f64x2.splat(0.5))), f64x2.splat(255))
    const whole = i32x4.trunc_sat_f64x2_u_zero(steps)
    store<u8>(out + b, i32x4.extract_lane(whole, 0))
    if (b + 1 < <usize>B) store<u8>(out + b, i32x4.extract_lane(whole, 1), 1)
  }
  return <u16>bits
}
