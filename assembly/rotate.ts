import { scratch } from './arena'
import { largest } from './lanes'

/*
 * Rotation of one row: scale, flip, transform. A vector holds four consecutive coordinates.
 *
 *   stage 1   a0+a1  a0−a1  a2+a3  a2−a3      swap neighbours, negate the odd lanes, add
 *   stage 2   a0+a2  a1+a3  a0−a2  a1−a3      swap halves, negate the upper lanes, add
 *   stage 4…  vector ± vector, two stages a pass:  A B C D → (A+B)+(C+D)  (A−B)+(C−D)  (A+B)−(C+D)  (A−B)−(C−D)
 *
 * Each addition has the operands of the reference, so the results are equal to the bit.
 */
export function rotate(x: usize, rows: i32, d: i32, D: i32, signs: usize, y: usize, exponents: usize): void {
  const flips = scratch((<usize>D) << 2)
  signFlips(signs, D, flips)
  for (let r = 0; r < rows; r++) {
    const e = exponentOf(x, d)
    store<i32>(exponents + ((<usize>r) << 2), e)
    rotateRow(x, d, D, e, flips, y)
    x += (<usize>d) << 2
    y += (<usize>D) << 2
  }
}

/** The ±1 diagonal as masks of the f32 sign bit, [D] u32. */
export function signFlips(signs: usize, D: i32, flips: usize): void {
  for (let j = 0; j < D; j++) store<u32>(flips + ((<usize>j) << 2), load<i8>(signs + j) < 0 ? 0x80000000 : 0)
}

/** The e with 2^e ≤ max|x| < 2^(e+1); 0 where every coordinate is zero or subnormal. */
export function exponentOf(x: usize, count: i32): i32 {
  const biased = reinterpret<u32>(largest(x, count)) >> 23
  return biased ? <i32>biased - 127 : 0
}

/** All but the sign bit; the signs of the odd lanes; the signs of the upper lanes. Read from memory: no lane is built anew. */
const MASKS = memory.data<u32>(
  [0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0, 0x80000000, 0, 0x80000000, 0, 0, 0x80000000, 0x80000000],
  16,
)

/** `y` [D] is overwritten; coordinates that are subnormal or below 2^(e−60) count as 0. */
export function rotateRow(x: usize, d: i32, D: i32, e: i32, flips: usize, y: usize): void {
  const scale = f32x4.splat(reinterpret<f32>(e < 127 ? (127 - e) << 23 : 0x400000))
  // |x| ≥ 2^−126 and |scaled| ≥ 2^−60 as one bound on the bits of |scaled|.
  const below = i32x4.splat((max<i32>(67, 1 - e) << 23) - 1)
  let at = y
  for (const end = y + ((<usize>d) << 2); at < end; at += 16, x += 16, flips += 16) {
    const scaled = f32x4.mul(v128.load(x), scale)
    const kept = i32x4.gt_s(v128.and(scaled, v128.load(MASKS)), below)
    let a = v128.and(v128.xor(scaled, v128.load(flips)), kept)
    a = f32x4.add(
      i8x16.shuffle(a, a, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11),
      v128.xor(a, v128.load(MASKS, 16)),
    )
    a = f32x4.add(
      i8x16.shuffle(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7),
      v128.xor(a, v128.load(MASKS, 32)),
    )
    v128.store(at, a)
  }
  const end = y + ((<usize>D) << 2)
  for (; at < end; at += 16) v128.store(at, f32x4.splat(0))
  let h: usize = 16
  const bytes = end - y
  for (; h << 1 < bytes; h <<= 2) quadruples(y, end, h)
  if (h < bytes) pairs(y, end, h)
}

/** Stages h and 2h in one pass; h in bytes. */
function quadruples(y: usize, end: usize, h: usize): void {
  for (let group = y; group < end; group += h << 2)
    for (let p0 = group; p0 < group + h; p0 += 16) {
      const p1 = p0 + h
      const p2 = p1 + h
      const p3 = p2 + h
      const a = v128.load(p0)
      const b = v128.load(p1)
      const c = v128.load(p2)
      const e = v128.load(p3)
      const a1 = f32x4.add(a, b)
      const b1 = f32x4.sub(a, b)
      const c1 = f32x4.add(c, e)
      const e1 = f32x4.sub(c, e)
      v128.store(p0, f32x4.add(a1, c1))
      v128.store(p1, f32x4.add(b1, e1))
      v128.store(p2, f32x4.sub(a1, c1))
      v128.store(p3, f32x4.sub(b1, e1))
    }
}

function pairs(y: usize, end: usize, h: usize): void {
  for (let group = y; group < end; group += h << 1)
    for (let p = group; p < group + h; p += 16) {
      const a = v128.load(p)
      const b = v128.load(p + h)
      v128.store(p, f32x4.add(a, b))
      v128.store(p + h, f32x4.sub(a, b))
    }
}
