import { scratch } from './arena'
import { elementBytes, F32, fourDots, rowF32 } from './lanes'
import { prepareLevels } from './levels'
import { fillTables, lookups, unpack, widenWeights } from './pairs'

/*
 * Estimates by RSQ-IP, a batch of candidates at a time: first their lines are touched in a loop that does nothing else,
 * so that as many cache misses as can be are under way at once; then the sign bytes, which lie 16 apart, are brought
 * together, and each key is looked up (pairs.ts).
 *
 *   staged, 32 bytes a key:   | s0 s1 … sB |
 *   spare, 128 bytes:         | patterns of 16 subspaces, 4 × 16 bytes | 16 weights f32 |
 */
const BATCH: usize = 128

export function rerankCodes(
  cap: i32,
  D: i32,
  signs: usize,
  magnitudes: usize,
  weights: usize,
  scales: usize,
  y: usize,
  unit: usize,
  heads: i32,
  choosers: i32,
  ids: usize,
  count: i32,
  estimates: usize,
): void {
  const B = <usize>(D >> 3)
  const staged = scratch(BATCH * 32 + 128 + ((<usize>(D + 8)) << 9))
  const spare = staged + BATCH * 32
  const tables = spare + 128
  prepareLevels()
  for (let h: usize = 0; h < <usize>heads; h++) {
    const head = h * <usize>cap
    for (let c = 0; c < choosers; c++, y += (<usize>D) << 2) {
      fillTables(y, D, tables)
      for (let first: usize = 0; first < <usize>count; first += BATCH) {
        const some = min<usize>(BATCH, <usize>count - first)
        let touched: u32 = 0
        for (let i: usize = 0; i < some; i++) {
          const n = ids ? <usize>load<u32>(ids + ((first + i) << 2)) : first + i
          const slot = head + n
          const planes = magnitudes + slot * 3 * B
          touched += load<u8>(planes) + load<u8>(planes + 3 * B - 1) + load<u8>(weights + slot * B)
          touched += load<u8>(scales + (slot << 1))
        }
        for (let i: usize = 0; i < some; i++) {
          const n = ids ? <usize>load<u32>(ids + ((first + i) << 2)) : first + i
          gatherSigns(signs + (head + (n & ~15)) * B + (n & 15), B, staged + (i << 5))
        }
        // Without a use of them the touching loads would be left out.
        store<u32>(spare, touched)
        for (let i: usize = 0; i < some; i++) {
          const n = ids ? <usize>load<u32>(ids + ((first + i) << 2)) : first + i
          const slot = head + n
          let sum: f32 = 0
          for (let b: usize = 0; b < B; b += 16) {
            unpack(staged + (i << 5) + b, magnitudes + slot * 3 * B + b, B, spare)
            widenWeights(weights + slot * B + b, spare + 64)
            sum += lookups(tables + (b << 12), min<usize>(16, B - b), spare)
          }
          const scale = <f64>reinterpret<f32>((<u32>load<u16>(scales + (slot << 1))) << 16)
          const value = <f32>(<f64>sum * scale * <f64>load<f32>(unit + (h << 2)))
          const out = estimates + ((first + i) << 2)
          store<f32>(out, c > 0 ? max<f32>(value, load<f32>(out)) : value)
        }
      }
    }
    if (ids) ids += (<usize>count) << 2
    estimates += (<usize>count) << 2
  }
}

/** The B sign bytes of one key side by side. */
function gatherSigns(signs: usize, B: usize, to: usize): void {
  const end = to + B
  for (; to + 8 <= end; to += 8, signs += 128) {
    store<u8>(to, load<u8>(signs))
    store<u8>(to, load<u8>(signs, 16), 1)
    store<u8>(to, load<u8>(signs, 32), 2)
    store<u8>(to, load<u8>(signs, 48), 3)
    store<u8>(to, load<u8>(signs, 64), 4)
    store<u8>(to, load<u8>(signs, 80), 5)
    store<u8>(to, load<u8>(signs, 96), 6)
    store<u8>(to, load<u8>(signs, 112), 7)
  }
  for (; to < end; to++, signs += 16) store<u8>(to, load<u8>(signs))
}

/** Exact products with stored rows, four at a time, so that equal rows have equal products wherever they stand. */
export function rerankRows(
  rows: usize,
  dtype: i32,
  cap: i32,
  d: i32,
  base: i32,
  chosen: usize,
  scale: f32,
  heads: i32,
  choosers: i32,
  ids: usize,
  count: i32,
  estimates: usize,
): void {
  const row = (<usize>d) << 2
  const spare = scratch(row << 2)
  const bytes = <usize>d * elementBytes(dtype)
  for (let h = 0; h < heads; h++) {
    const first = rows + (<usize>h * <usize>cap + <usize>base) * bytes
    for (let i = 0; i < count; i += 4) {
      const whole = i + 4 <= count
      let r0 = first + <usize>i * bytes
      let r1 = r0 + bytes
      let r2 = r1 + bytes
      let r3 = r2 + bytes
      if (ids || dtype !== F32 || !whole) {
        const last = count - 1
        r0 = rowOf(first, ids, i, dtype, d, spare)
        r1 = rowOf(first, ids, min<i32>(i + 1, last), dtype, d, spare + row)
        r2 = rowOf(first, ids, min<i32>(i + 2, last), dtype, d, spare + 2 * row)
        r3 = rowOf(first, ids, min<i32>(i + 3, last), dtype, d, spare + 3 * row)
      }
      let best = fourDots(chosen, r0, r1, r2, r3, row)
      for (let c = 1; c < choosers; c++) best = f32x4.max(best, fourDots(chosen + <usize>c * row, r0, r1, r2, r3, row))
      best = f32x4.mul(best, f32x4.splat(scale))
      const out = estimates + ((<usize>i) << 2)
      if (whole) v128.store(out, best)
      else storeSome(best, count - i, out)
    }
    if (ids) ids += (<usize>count) << 2
    chosen += <usize>choosers * row
    estimates += (<usize>count) << 2
  }
}

/** Row i of those listed, as f32. */
function rowOf(first: usize, ids: usize, i: i32, dtype: i32, d: i32, spare: usize): usize {
  const n = ids ? load<u32>(ids + ((<usize>i) << 2)) : i
  return rowF32(first + <usize>n * <usize>d * elementBytes(dtype), dtype, d, spare)
}

/** The first one, two or three lanes. */
function storeSome(x: v128, some: i32, to: usize): void {
  store<f32>(to, f32x4.extract_lane(x, 0))
  if (some > 1) store<f32>(to, f32x4.extract_lane(x, 1), 4)
  if (some > 2) store<f32>(to, f32x4.extract_lane(x, 2), 8)
}
