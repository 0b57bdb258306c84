import { scratch } from './arena'
import { BF16, elementBytes, exp4, F32 } from './lanes'
import { high4, low4, packRows, twoByFour } from './products'

/*
 * Up to four query heads of a group, packed, share each row, which is widened in registers; while scores are softmaxed
 * a lane is a query.
 *
 *   | s·q0  s·q1  s·q2  s·q3 |   one vector a position: scores, then weights
 *
 * Values: eight dimensions of four queries are eight accumulators in registers, summed over a chunk of positions that
 * the nearest cache holds.
 *
 *   v[j … j+3] · p0   v[j+4 … j+7] · p0   …   v[j … j+3] · p3   v[j+4 … j+7] · p3
 */
const CHUNK: usize = 16

export function attend(
  queries: usize,
  keys: usize,
  keysDtype: i32,
  keysCap: i32,
  values: usize,
  valuesDtype: i32,
  valuesCap: i32,
  d: i32,
  heads: i32,
  group: i32,
  before0: i32,
  before1: i32,
  after0: i32,
  after1: i32,
  ids: usize,
  k: i32,
  base: i32,
  scale: f32,
  parts: i32,
  partials: usize,
): void {
  const first = before1 - before0
  const total = first + k + after1 - after0
  const run = (total + parts - 1) / parts
  const row = (<usize>d) << 2
  const state = row + 8
  const packed = scratch(8 * row + (<usize>run + 1) * 20)
  const sums = packed + 4 * row
  const scores = sums + 4 * row
  const positions = scores + ((<usize>run + 1) << 4)
  const unused = positions + ((<usize>run) << 2)
  const keyRow = <usize>d * elementBytes(keysDtype)
  const valueRow = <usize>d * elementBytes(valuesDtype)
  for (let p = 0; p < parts; p++) {
    const from = min<i32>(total, p * run)
    const count = min<i32>(total, from + run) - from
    for (let h = 0; h < heads; h++) {
      for (let i = 0; i < count; i++) {
        const at = from + i
        let position = after0 + at - first - k
        if (at < first) position = before0 + at
        else if (at < first + k) position = base + load<u32>(ids + ((<usize>h * <usize>k + <usize>(at - first)) << 2))
        store<u32>(positions + ((<usize>i) << 2), position)
      }
      const headKeys = keys + <usize>h * <usize>keysCap * keyRow
      const headValues = values + <usize>h * <usize>valuesCap * valueRow
      for (let g = 0; g < group; g += 4) {
        const q = <usize>h * <usize>group + <usize>g
        const some = min<i32>(4, group - g)
        const out = partials + (<usize>p * <usize>heads * <usize>group + q) * state
        packRows(queries + q * row, F32, some, d, packed)
        let top = f32x4.splat(-Infinity)
        // The rows of a range come by themselves.
        const step = k ? <i32>CHUNK : count
        for (let i = 0; i < count; i += step) {
          const part = min<i32>(step, count - i)
          const listed = positions + ((<usize>i) << 2)
          if (k) fetch(headKeys, keyRow, listed, part, unused)
          const room = scores + ((<usize>i) << 4)
          top = f32x4.pmax(top, scoreRun(packed, headKeys, keysDtype, d, listed, part, scale, room))
        }
        const sum = softmaxRun(scores, count, top)
        memory.fill(sums, 0, 4 * row)
        for (let i = 0; i < count; i += <i32>CHUNK) {
          const part = min<i32>(<i32>CHUNK, count - i)
          const listed = positions + ((<usize>i) << 2)
          fetch(headValues, valueRow, listed, part, unused)
          accumulate(headValues, valuesDtype, valueRow, listed, part, scores + ((<usize>i) << 4), sums, row)
        }
        for (let r = 0; r < some; r++) {
          memory.copy(out + <usize>r * state, sums + <usize>r * row, row)
          store<f32>(out + <usize>r * state + row, lane(top, r))
          store<f32>(out + <usize>r * state + row, lane(sum, r), 4)
        }
      }
    }
  }
}

function lane(x: v128, i: i32): f32 {
  if (i === 0) return f32x4.extract_lane(x, 0)
  if (i === 1) return f32x4.extract_lane(x, 1)
  return i === 2 ? f32x4.extract_lane(x, 2) : f32x4.extract_lane(x, 3)
}

/** Scores of the run for four packed queries, and room for one more; returns their maxima. */
function scoreRun(
  packed: usize,
  keys: usize,
  dtype: i32,
  d: i32,
  positions: usize,
  count: i32,
  scale: f32,
  scores: usize,
): v128 {
  const bytes = <usize>d * elementBytes(dtype)
  const last = positions + ((<usize>count - 1) << 2)
  let top = f32x4.splat(-Infinity)
  for (; positions <= last; positions += 8, scores += 32) {
    const next = min<usize>(positions + 4, last)
    twoByFour(
      keys + <usize>load<u32>(positions) * bytes,
      keys + <usize>load<u32>(next) * bytes,
      dtype,
      packed,
      d,
      scores,
    )
    const s0 = f32x4.mul(v128.load(scores), f32x4.splat(scale))
    const s1 = f32x4.mul(v128.load(scores, 16), f32x4.splat(scale))
    v128.store(scores, s0)
    v128.store(scores, s1, 16)
    top = f32x4.pmax(top, f32x4.pmax(s0, s1))
  }
  return top
}

/** Scores become e^(s − max); returns their sums. */
function softmaxRun(scores: usize, count: i32, top: v128): v128 {
  let total = f32x4.splat(0)
  for (let i = 0; i < count; i++, scores += 16) {
    const p = exp4(f32x4.sub(v128.load(scores), top))
    v128.store(scores, p)
    total = f32x4.add(total, p)
  }
  return total
}

/** Adds Σ p·v of a chunk of positions to the sums of four queries, `row` bytes apart. */
function accumulate(
  values: usize,
  dtype: i32,
  bytes: usize,
  positions: usize,
  count: i32,
  weights: usize,
  sums: usize,
  row: usize,
): void {
  for (const end = sums + row; sums < end; sums += 32) {
    if (dtype === F32) accumulateEight<f32>(values, bytes, positions, count, weights, sums, row)
    else if (dtype === BF16) accumulateEight<i16>(values, bytes, positions, count, weights, sums, row)
    else accumulateEight<u16>(values, bytes, positions, count, weights, sums, row)
    values += elementBytes(dtype) << 3
  }
}

/** The same for eight dimensions. */
function accumulateEight<T>(
  values: usize,
  bytes: usize,
  positions: usize,
  count: i32,
  weights: usize,
  sums: usize,
  row: usize,
): void {
  const sums2 = sums + (row << 1)
  let a = v128.load(sums)
  let a1 = v128.load(sums, 16)
  let b = v128.load(sums + row)
  let b1 = v128.load(sums + row, 16)
  let c = v128.load(sums2)
  let c1 = v128.load(sums2, 16)
  let e = v128.load(sums2 + row)
  let e1 = v128.load(sums2 + row, 16)
  for (const end = positions + ((<usize>count) << 2); positions < end; positions += 4, weights += 16) {
    const value = values + <usize>load<u32>(positions) * bytes
    const v = low4<T>(value)
    const v1 = high4<T>(value)
    const p0 = v128.load_splat<u32>(weights)
    a = f32x4.add(a, f32x4.mul(v, p0))
    a1 = f32x4.add(a1, f32x4.mul(v1, p0))
    const p1 = v128.load_splat<u32>(weights, 4)
    b = f32x4.add(b, f32x4.mul(v, p1))
    b1 = f32x4.add(b1, f32x4.mul(v1, p1))
    const p2 = v128.load_splat<u32>(weights, 8)
    c = f32x4.add(c, f32x4.mul(v, p2))
    c1 = f32x4.add(c1, f32x4.mul(v1, p2))
    const p3 = v128.load_splat<u32>(weights, 12)
    e = f32x4.add(e, f32x4.mul(v, p3))
    e1 = f32x4.add(e1, f32x4.mul(v1, p3))
  }
  v128.store(sums, a)
  v128.store(sums, a1, 16)
  v128.store(sums + row, b)
  v128.store(sums + row, b1, 16)
  v128.store(sums2, c)
  v128.store(sums2, c1, 16)
  v128.store(sums2 + row, e)
  v128.store(sums2 + row, e1, 16)
}

/** Reads every cache line of the rows in order: from far memory faster than the walk by columns, which then finds them. */
function fetch(rows: usize, bytes: usize, positions: usize, count: i32, unused: usize): void {
  let any: i32 = 0
  for (const end = positions + ((<usize>count) << 2); positions < end; positions += 4) {
    const from = rows + <usize>load<u32>(positions) * bytes
    for (let at = from; at < from + bytes; at += 64) any |= load<i32>(at)
  }
  store<i32>(unused, any)
}
