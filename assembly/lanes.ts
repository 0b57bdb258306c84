/*
 * What several kernels do with four f32 lanes, and the reading of stored rows.
 *
 *   f16 | s eeeee mmmmmmmmmm |  → (bits & 0x7fff) << 13 as f32, times 2^112: exact, subnormals included
 *   bf16| s eeeeeeee mmmmmmm |  → bits << 16
 */

/** Element types of stored rows, as the host numbers them. */
export const F32 = 0
export const F16 = 1
export const BF16 = 2

/** Bytes of one element. */
export function elementBytes(dtype: i32): usize {
  return dtype === F32 ? 4 : 2
}

export function absolute(x: v128): v128 {
  return v128.and(x, i32x4.splat(0x7fffffff))
}

/** Σ of the lanes, ((0 + 2) + (1 + 3)). */
export function sum4(x: v128): f32 {
  const pairs = f32x4.add(x, i8x16.shuffle(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7))
  return f32x4.extract_lane(pairs, 0) + f32x4.extract_lane(pairs, 1)
}

export function max4(x: v128): f32 {
  const y = f32x4.pmax(x, i8x16.shuffle(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7))
  return max<f32>(f32x4.extract_lane(y, 0), f32x4.extract_lane(y, 1))
}

/** Largest |x| of `count` f32, a multiple of 4; bits compare like values. */
export function largest(x: usize, count: i32): f32 {
  let top = i32x4.splat(0)
  for (const end = x + ((<usize>count) << 2); x < end; x += 16) top = i32x4.max_s(top, absolute(v128.load(x)))
  return max4(top)
}

/** A u64 that sorts by value, −0 equal to 0, then by lower id. */
export function sortable(value: f32, id: u32): u64 {
  const bits = reinterpret<u32>(value + 0)
  const ordered = bits ^ (<u32>(<i32>bits >> 31) | 0x80000000)
  return ((<u64>ordered) << 32) | <u64>~id
}

/** 2^n as f64, −1022 ≤ n ≤ 1023. */
export function pow2(n: i32): f64 {
  return reinterpret<f64>((<i64>(n + 1023)) << 52)
}

/** Widens `count` stored elements, a multiple of 8, to f32 at `to`. */
export function widen(from: usize, dtype: i32, count: i32, to: usize): void {
  const end = to + ((<usize>count) << 2)
  if (dtype === F32) memory.copy(to, from, (<usize>count) << 2)
  else if (dtype === BF16)
    for (; to < end; to += 32, from += 16) {
      const bits = v128.load(from)
      v128.store(to, i32x4.shl(i32x4.extend_low_i16x8_u(bits), 16))
      v128.store(to, i32x4.shl(i32x4.extend_high_i16x8_u(bits), 16), 16)
    }
  else for (; to < end; to += 16, from += 8) v128.store(to, fromF16(v128.load16x4_u(from)))
}

/** Four f16 bit patterns, one in each 32-bit lane. */
function fromF16(bits: v128): v128 {
  const magnitude = v128.and(bits, i32x4.splat(0x7fff))
  const value = f32x4.mul(i32x4.shl(magnitude, 13), f32x4.splat(reinterpret<f32>(0x77800000)))
  const special = v128.and(i32x4.gt_s(magnitude, i32x4.splat(0x7bff)), i32x4.splat(0x7f800000))
  const sign = i32x4.shl(v128.andnot(bits, i32x4.splat(0x7fff)), 16)
  return v128.or(v128.or(value, special), sign)
}

/** A stored row as f32: where it lies, or widened to `spare`. */
export function rowF32(from: usize, dtype: i32, d: i32, spare: usize): usize {
  if (dtype === F32) return from
  widen(from, dtype, d, spare)
  return spare
}

/** Products of one row with four others, one a lane; `row` bytes each, a multiple of 32. */
export function fourDots(key: usize, q0: usize, q1: usize, q2: usize, q3: usize, row: usize): v128 {
  let a = f32x4.splat(0)
  let b = a
  let c = a
  let e = a
  let a1 = a
  let b1 = a
  let c1 = a
  let e1 = a
  for (let j: usize = 0; j < row; j += 32) {
    const k = v128.load(key + j)
    const l = v128.load(key + j, 16)
    a = f32x4.add(a, f32x4.mul(k, v128.load(q0 + j)))
    b = f32x4.add(b, f32x4.mul(k, v128.load(q1 + j)))
    c = f32x4.add(c, f32x4.mul(k, v128.load(q2 + j)))
    e = f32x4.add(e, f32x4.mul(k, v128.load(q3 + j)))
    a1 = f32x4.add(a1, f32x4.mul(l, v128.load(q0 + j, 16)))
    b1 = f32x4.add(b1, f32x4.mul(l, v128.load(q1 + j, 16)))
    c1 = f32x4.add(c1, f32x4.mul(l, v128.load(q2 + j, 16)))
    e1 = f32x4.add(e1, f32x4.mul(l, v128.load(q3 + j, 16)))
  }
  a = f32x4.add(a, a1)
  b = f32x4.add(b, b1)
  c = f32x4.add(c, c1)
  e = f32x4.add(e, e1)
  const ab0 = i32x4.shuffle(a, b, 0, 4, 1, 5)
  const ab1 = i32x4.shuffle(a, b, 2, 6, 3, 7)
  const ce0 = i32x4.shuffle(c, e, 0, 4, 1, 5)
  const ce1 = i32x4.shuffle(c, e, 2, 6, 3, 7)
  const ab = f32x4.add(ab0, ab1)
  const ce = f32x4.add(ce0, ce1)
  return f32x4.add(i32x4.shuffle(ab, ce, 0, 1, 4, 5), i32x4.shuffle(ab, ce, 2, 3, 6, 7))
}

/** e^x for x ≤ 0 to about 1e-7; 0 below −87.3, for −Inf and for NaN. */
export function exp4(x: v128): v128 {
  // Adding 1.5·2^23 rounds to an integer, which then stands in the low bits.
  const magic = f32x4.splat(12582912)
  const shifted = f32x4.add(f32x4.mul(x, f32x4.splat(<f32>Math.LOG2E)), magic)
  const n = f32x4.sub(shifted, magic)
  let r = f32x4.sub(x, f32x4.mul(n, f32x4.splat(0.693359375)))
  r = f32x4.add(r, f32x4.mul(n, f32x4.splat(2.1219444e-4)))
  let p = f32x4.add(f32x4.mul(r, f32x4.splat(1.98756915e-4)), f32x4.splat(1.3981999507e-3))
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(8.3334519073e-3))
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(4.1665795894e-2))
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1.6666665459e-1))
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(0.5))
  p = f32x4.add(f32x4.add(f32x4.mul(f32x4.mul(p, r), r), r), f32x4.splat(1))
  const power = i32x4.shl(i32x4.add(shifted, i32x4.splat(127)), 23)
  return v128.and(f32x4.mul(p, power), f32x4.ge(x, f32x4.splat(-87.3)))
}

export function exp(x: f32): f32 {
  return f32x4.extract_lane(exp4(f32x4.splat(x)), 0)
}
