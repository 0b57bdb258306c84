import { scratch } from './arena'
import { largest, pow2 } from './lanes'
import { exponentOf, rotateRow, signFlips } from './rotate'

/*
 * A group's queries become its choosers, their butterflies and the integers t.
 *
 *   t_j   |30·y| > M  > 3M  > 5M  … > 29M     fifteen compares on four lanes; a true lane is −1, so subtract
 *         sign:  (t ^ s) − s with s = −1 where y < 0
 */
export function query(
  queries: usize,
  heads: i32,
  group: i32,
  choosers: i32,
  d: i32,
  D: i32,
  signs: usize,
  chosen: usize,
  y: usize,
  scales: usize,
  t: usize,
): void {
  const flips = scratch((<usize>D) << 2)
  signFlips(signs, D, flips)
  const row = (<usize>d) << 2
  for (let h = 0; h < heads; h++) {
    choose(queries, group, choosers, row, chosen)
    const e = exponentOf(chosen, choosers * d)
    for (let c = 0; c < choosers; c++)
      rotateRow(chosen + <usize>c * row, d, D, e, flips, y + ((<usize>c * <usize>D) << 2))
    store<f32>(scales, <f32>(pow2(e) / (Math.sqrt(<f64>D) * <f64>(choosers === 1 ? group : 1))))
    quantize(y, choosers * D, t)
    queries += <usize>group * row
    chosen += <usize>choosers * row
    y += (<usize>choosers * <usize>D) << 2
    t += <usize>choosers * <usize>D
    scales += 4
  }
}

/** The sum of the group's queries in head order, or the queries as they are. */
function choose(queries: usize, group: i32, choosers: i32, row: usize, chosen: usize): void {
  if (choosers > 1) {
    memory.copy(chosen, queries, <usize>group * row)
    return
  }
  for (let at: usize = 0; at < row; at += 16) {
    let sum = v128.load(queries + at)
    for (let g = 1; g < group; g++) sum = f32x4.add(sum, v128.load(queries + <usize>g * row + at))
    v128.store(chosen + at, sum)
  }
}

function quantize(y: usize, count: i32, t: usize): void {
  const M = largest(y, count)
  for (let j = 0; j < count; j += 4) {
    const v = v128.load(y + ((<usize>j) << 2))
    const a = f32x4.mul(f32x4.splat(30), f32x4.abs(v))
    let level = i32x4.splat(0)
    for (let odd: f32 = 1; odd < 30; odd += 2) level = i32x4.sub(level, f32x4.gt(a, f32x4.splat(odd * M)))
    const negative = f32x4.lt(v, f32x4.splat(0))
    const narrow = i16x8.narrow_i32x4_s(i32x4.sub(v128.xor(level, negative), negative), level)
    v128.store_lane<u32>(t + j, i8x16.narrow_i16x8_s(narrow, narrow), 0)
  }
}
