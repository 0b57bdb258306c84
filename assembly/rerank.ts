import { scratch } from './arena'
import { dot, elementBytes, F32, fourDots, rowF32 } from './lanes'
import { fillTables, lookups, unpack, widenWeights } from './pairs'

/*
 * Estimates by RSQ-IP, a batch of candidates at a time: first the sign bytes, which lie 16 apart, are brought together
 * and the other lines touched, so that many cache misses are under way at once; then each key is looked up (pairs.ts).
 *
 *   staged, 32 bytes a key:   | s0 s1 … sB |
 *   spare, 128 bytes:         | patterns of 16 subspaces, 4 × 16 bytes | 16 weights f32 |
 */
const BATCH: usize = 32

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
          gatherSigns(signs + (head + (n & ~15)) * B + (n & 15), B, staged + (i << 5))
          touched += load<u8>(magnitudes + slot * 3 * B) + load<u8>(magnitudes + slot * 3 * B + 3 * B - 1)
          touched += load<u8>(weights + slot * B) + load<u16>(scales + (slot << 1))
        }
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

/** Exact products with stored rows; `spare` rows are widened one by one unless they are f32. */
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
  const spare = scratch((<usize>d) << 2)
  const bytes = <usize>d * elementBytes(dtype)
  for (let h = 0; h < heads; h++) {
    const first = rows + (<usize>h * <usize>cap + <usize>base) * bytes
    let i: usize = 0
    if (!ids && dtype === F32 && choosers === 1)
      for (; i + 4 <= <usize>count; i += 4) {
        const row = first + i * bytes
        const products = fourDots(chosen, row, row + bytes, row + 2 * bytes, row + 3 * bytes, bytes)
        v128.store(estimates + (i << 2), f32x4.mul(products, f32x4.splat(scale)))
      }
    for (; i < <usize>count; i++) {
      const n = ids ? <usize>load<u32>(ids + (i << 2)) : i
      const row = rowF32(first + n * bytes, dtype, d, spare)
      let best = dot(row, chosen, d)
      for (let c = 1; c < choosers; c++) best = max<f32>(best, dot(row, chosen + ((<usize>c * <usize>d) << 2), d))
      store<f32>(estimates + (i << 2), best * scale)
    }
    if (ids) ids += (<usize>count) << 2
    chosen += (<usize>choosers * <usize>d) << 2
    estimates += (<usize>count) << 2
  }
}
