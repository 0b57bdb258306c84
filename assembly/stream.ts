/*
 * What the memory gives: a plain read of every byte, the yardstick of the exact scan.
 *
 *   | 16 | 16 | 16 | 16 |   one cache line a turn, four sums
 */
export function stream(from: usize, bytes: usize): i32 {
  let a = i32x4.splat(0)
  let b = a
  let c = a
  let e = a
  for (const end = from + bytes; from < end; from += 64) {
    a = i32x4.add(a, v128.load(from))
    b = i32x4.add(b, v128.load(from, 16))
    c = i32x4.add(c, v128.load(from, 32))
    e = i32x4.add(e, v128.load(from, 48))
  }
  return i32x4.extract_lane(i32x4.add(i32x4.add(a, b), i32x4.add(c, e)), 0)
}
