import { BF16, elementBytes, F32 } from './lanes'

/*
 * Inner products of stored rows with f32 ones, the stored ones widened in registers. Whatever the path, a product is
 * four running sums over its row, one a lane, in order, then (0 + 2) + (1 + 3): equal to the bit, alone or among others.
 *
 * Loops that a dtype is compiled into take it as a type: f32, u16 for f16, i16 for bf16.
 *
 * Packed rows take turns by eight, so that one pointer walks along all of them; n is a multiple of 8:
 *
 *   | row 0, 0 … 7 | row 1, 0 … 7 | row 2, 0 … 7 | row 3, 0 … 7 | row 0, 8 … 15 | …
 */
/** Rows that take turns. */
const TURN: i32 = 4

/** Rows that `packRows` makes of `count`. */
export function packedRows(count: i32): i32 {
  return (count + TURN - 1) & -TURN
}

/** `count` stored rows of n, widened and packed; zeros past them. */
export function packRows(from: usize, dtype: i32, count: i32, n: i32, to: usize): void {
  const bytes = <usize>n * elementBytes(dtype)
  const turn = (<usize>n) << 4
  for (let r = 0; r < packedRows(count); r++) {
    const out = to + <usize>(r / TURN) * turn + ((<usize>(r % TURN)) << 5)
    if (r >= count) for (let at: usize = 0; at < turn; at += 128) memory.fill(out + at, 0, 32)
    else if (dtype === F32) packRow<f32>(from, n, out)
    else if (dtype === BF16) packRow<i16>(from, n, out)
    else packRow<u16>(from, n, out)
    from += bytes
  }
}

function packRow<T>(from: usize, n: i32, out: usize): void {
  for (const end = out + ((<usize>n) << 4); out < end; out += 128) {
    v128.store(out, low4<T>(from))
    v128.store(out, high4<T>(from), 16)
    from += sizeof<T>() << 3
  }
}

/** The first four of eight stored elements as f32. */
export function low4<T>(at: usize): v128 {
  if (isFloat<T>()) return v128.load(at)
  const bits = i32x4.shl(v128.load16x4_u(at), 16)
  return isSigned<T>() ? bits : halves(bits)
}

/** The last four. */
export function high4<T>(at: usize): v128 {
  if (isFloat<T>()) return v128.load(at, 16)
  const bits = i32x4.shl(v128.load16x4_u(at, 8), 16)
  return isSigned<T>() ? bits : halves(bits)
}

/** f32 of finite f16 bits in the upper halves, exact, subnormals included. */
function halves(bits: v128): v128 {
  const small = v128.and(i32x4.shr_s(bits, 3), i32x4.splat(0x8fffffff))
  return f32x4.mul(small, f32x4.splat(reinterpret<f32>(0x77800000)))
}

/** Two stored rows against four packed ones: [2, 4] f32 to `to`. */
export function twoByFour(row0: usize, row1: usize, dtype: i32, packed: usize, n: i32, to: usize): void {
  const end = packed + ((<usize>n) << 4)
  if (dtype === F32) twoByFourOf<f32>(row0, row1, packed, end, to)
  else if (dtype === BF16) twoByFourOf<i16>(row0, row1, packed, end, to)
  else twoByFourOf<u16>(row0, row1, packed, end, to)
}

function twoByFourOf<T>(row0: usize, row1: usize, packed: usize, end: usize, to: usize): void {
  let a = f32x4.splat(0)
  let b = a
  let c = a
  let e = a
  let a1 = a
  let b1 = a
  let c1 = a
  let e1 = a
  for (; packed < end; packed += 128) {
    let x = low4<T>(row0)
    let y = low4<T>(row1)
    let v = v128.load(packed)
    a = f32x4.add(a, f32x4.mul(x, v))
    a1 = f32x4.add(a1, f32x4.mul(y, v))
    v = v128.load(packed, 32)
    b = f32x4.add(b, f32x4.mul(x, v))
    b1 = f32x4.add(b1, f32x4.mul(y, v))
    v = v128.load(packed, 64)
    c = f32x4.add(c, f32x4.mul(x, v))
    c1 = f32x4.add(c1, f32x4.mul(y, v))
    v = v128.load(packed, 96)
    e = f32x4.add(e, f32x4.mul(x, v))
    e1 = f32x4.add(e1, f32x4.mul(y, v))
    x = high4<T>(row0)
    y = high4<T>(row1)
    v = v128.load(packed, 16)
    a = f32x4.add(a, f32x4.mul(x, v))
    a1 = f32x4.add(a1, f32x4.mul(y, v))
    v = v128.load(packed, 48)
    b = f32x4.add(b, f32x4.mul(x, v))
    b1 = f32x4.add(b1, f32x4.mul(y, v))
    v = v128.load(packed, 80)
    c = f32x4.add(c, f32x4.mul(x, v))
    c1 = f32x4.add(c1, f32x4.mul(y, v))
    v = v128.load(packed, 112)
    e = f32x4.add(e, f32x4.mul(x, v))
    e1 = f32x4.add(e1, f32x4.mul(y, v))
    row0 += sizeof<T>() << 3
    row1 += sizeof<T>() << 3
  }
  v128.store(to, fourSums(a, b, c, e))
  v128.store(to, fourSums(a1, b1, c1, e1), 16)
}

/** Four stored rows, `bytes` apart, against one f32 row: the weights of a single token, each read once. */
export function fourByOne(rows: usize, bytes: usize, dtype: i32, x: usize, n: i32): v128 {
  const end = x + ((<usize>n) << 2)
  if (dtype === F32) return fourByOneOf<f32>(rows, bytes, x, end)
  return dtype === BF16 ? fourByOneOf<i16>(rows, bytes, x, end) : fourByOneOf<u16>(rows, bytes, x, end)
}

function fourByOneOf<T>(row0: usize, bytes: usize, x: usize, end: usize): v128 {
  let row1 = row0 + bytes
  let row2 = row1 + bytes
  let row3 = row2 + bytes
  let a = f32x4.splat(0)
  let b = a
  let c = a
  let e = a
  for (; x < end; x += 32) {
    const x0 = v128.load(x)
    const x1 = v128.load(x, 16)
    a = f32x4.add(f32x4.add(a, f32x4.mul(x0, low4<T>(row0))), f32x4.mul(x1, high4<T>(row0)))
    b = f32x4.add(f32x4.add(b, f32x4.mul(x0, low4<T>(row1))), f32x4.mul(x1, high4<T>(row1)))
    c = f32x4.add(f32x4.add(c, f32x4.mul(x0, low4<T>(row2))), f32x4.mul(x1, high4<T>(row2)))
    e = f32x4.add(f32x4.add(e, f32x4.mul(x0, low4<T>(row3))), f32x4.mul(x1, high4<T>(row3)))
    row0 += sizeof<T>() << 3
    row1 += sizeof<T>() << 3
    row2 += sizeof<T>() << 3
    row3 += sizeof<T>() << 3
  }
  return fourSums(a, b, c, e)
}

/** Sums of the lanes of four vectors, one a lane. */
function fourSums(a: v128, b: v128, c: v128, e: v128): v128 {
  const ab = f32x4.add(i32x4.shuffle(a, b, 0, 4, 1, 5), i32x4.shuffle(a, b, 2, 6, 3, 7))
  const ce = f32x4.add(i32x4.shuffle(c, e, 0, 4, 1, 5), i32x4.shuffle(c, e, 2, 6, 3, 7))
  return f32x4.add(i32x4.shuffle(ab, ce, 0, 1, 4, 5), i32x4.shuffle(ab, ce, 2, 3, 6, 7))
}
