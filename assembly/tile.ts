import { elementBytes, rowF32 } from './lanes'

/*
 * The inner product of `dense`: four rows of A meet eight columns of B in eight accumulators.
 *
 *              | b0 … b3 | b4 … b7 |
 *   a0 splat   |  c00    |  c01    |
 *   a1 splat   |  c10    |  c11    |   one step of k: two loads of B, four splats of A, eight products, eight sums
 *   a2 splat   |  c20    |  c21    |
 *   a3 splat   |  c30    |  c31    |
 */
/** C [4, n] = or += A [4, k] · B [k, n], all f32; n a multiple of 8, row distances in bytes. */
export function product(
  a: usize,
  aRow: usize,
  b: usize,
  bRow: usize,
  c: usize,
  cRow: usize,
  k: i32,
  n: i32,
  add: bool,
): void {
  const a2 = a + (aRow << 1)
  const c2 = c + (cRow << 1)
  for (let j: usize = 0; j < (<usize>n) << 2; j += 32) {
    let c00 = f32x4.splat(0)
    let c01 = c00
    let c10 = c00
    let c11 = c00
    let c20 = c00
    let c21 = c00
    let c30 = c00
    let c31 = c00
    if (add) {
      c00 = v128.load(c + j)
      c01 = v128.load(c + j, 16)
      c10 = v128.load(c + j + cRow)
      c11 = v128.load(c + j + cRow, 16)
      c20 = v128.load(c2 + j)
      c21 = v128.load(c2 + j, 16)
      c30 = v128.load(c2 + j + cRow)
      c31 = v128.load(c2 + j + cRow, 16)
    }
    let from = b + j
    for (let i: usize = 0; i < (<usize>k) << 2; i += 4, from += bRow) {
      const b0 = v128.load(from)
      const b1 = v128.load(from, 16)
      const x0 = v128.load_splat<u32>(a + i)
      c00 = f32x4.add(c00, f32x4.mul(x0, b0))
      c01 = f32x4.add(c01, f32x4.mul(x0, b1))
      const x1 = v128.load_splat<u32>(a + i + aRow)
      c10 = f32x4.add(c10, f32x4.mul(x1, b0))
      c11 = f32x4.add(c11, f32x4.mul(x1, b1))
      const x2 = v128.load_splat<u32>(a2 + i)
      c20 = f32x4.add(c20, f32x4.mul(x2, b0))
      c21 = f32x4.add(c21, f32x4.mul(x2, b1))
      const x3 = v128.load_splat<u32>(a2 + i + aRow)
      c30 = f32x4.add(c30, f32x4.mul(x3, b0))
      c31 = f32x4.add(c31, f32x4.mul(x3, b1))
    }
    v128.store(c + j, c00)
    v128.store(c + j, c01, 16)
    v128.store(c + j + cRow, c10)
    v128.store(c + j + cRow, c11, 16)
    v128.store(c2 + j, c20)
    v128.store(c2 + j, c21, 16)
    v128.store(c2 + j + cRow, c30)
    v128.store(c2 + j + cRow, c31, 16)
  }
}

/** `count` stored rows of d as f32 columns of `to` [d, width]; the columns past them become zeros. */
export function packTransposed(from: usize, dtype: i32, d: i32, count: i32, width: i32, spare: usize, to: usize): void {
  const bytes = <usize>d * elementBytes(dtype)
  const row = (<usize>d) << 2
  const step = (<usize>width) << 2
  for (let n = 0; n < width; n += 4, to += 16) {
    for (let i = 0; i < 4; i++) {
      const place = spare + <usize>i * row
      if (n + i >= count) memory.fill(place, 0, row)
      else {
        const key = from + <usize>(n + i) * bytes
        if (rowF32(key, dtype, d, place) !== place) memory.copy(place, key, row)
      }
    }
    let out = to
    for (let j = spare; j < spare + row; j += 16) {
      const a = v128.load(j)
      const b = v128.load(j + row)
      const c = v128.load(j + 2 * row)
      const e = v128.load(j + 3 * row)
      const ab0 = i32x4.shuffle(a, b, 0, 4, 1, 5)
      const ab1 = i32x4.shuffle(a, b, 2, 6, 3, 7)
      const ce0 = i32x4.shuffle(c, e, 0, 4, 1, 5)
      const ce1 = i32x4.shuffle(c, e, 2, 6, 3, 7)
      v128.store(out, i32x4.shuffle(ab0, ce0, 0, 1, 4, 5))
      v128.store(out + step, i32x4.shuffle(ab0, ce0, 2, 3, 6, 7))
      v128.store(out + 2 * step, i32x4.shuffle(ab1, ce1, 0, 1, 4, 5))
      v128.store(out + 3 * step, i32x4.shuffle(ab1, ce1, 2, 3, 6, 7))
      out += 4 * step
    }
  }
}
