import { scratch } from './arena'
import { elementBytes, exp, exp4, max4, sum4, widen } from './lanes'
import { packTransposed, product } from './tile'

/*
 * Causal attention by tiles of 64 queries and 64 keys with a running maximum and sum.
 *
 *   Q [64, d] · Kᵀ [d, 64] → S, four rows at a time → P = e^(S − max) → O [64, d] += P · V [64, d]
 *
 * Four rows of S meet eight columns in eight accumulators (see tile.ts). Rows past the last query are zeros.
 */
const TILE: usize = 64

export function dense(
  queries: usize,
  tokens: i32,
  first: i32,
  length: i32,
  keys: usize,
  keysDtype: i32,
  keysCap: i32,
  values: usize,
  valuesDtype: i32,
  valuesCap: i32,
  d: i32,
  heads: i32,
  group: i32,
  scale: f32,
  output: usize,
  lse: usize,
): void {
  const row = (<usize>d) << 2
  const q = scratch((4 * TILE + 4) * row + (4 + 2) * TILE * 4)
  const o = q + TILE * row
  const kt = o + TILE * row
  const v = kt + TILE * row
  const spare = v + TILE * row
  const s = spare + 4 * row
  const tops = s + 4 * TILE * 4
  const totals = tops + TILE * 4
  const keyRow = <usize>d * elementBytes(keysDtype)
  const valueRow = <usize>d * elementBytes(valuesDtype)
  for (let hq = 0; hq < heads * group; hq++) {
    const headKeys = keys + <usize>(hq / group) * <usize>keysCap * keyRow
    const headValues = values + <usize>(hq / group) * <usize>valuesCap * valueRow
    for (let t = 0; t < tokens; t += <i32>TILE) {
      const rows = min<i32>(<i32>TILE, tokens - t)
      const at = (<usize>hq * <usize>tokens + <usize>t) * row
      memory.fill(q, 0, 2 * TILE * row)
      memory.copy(q, queries + at, <usize>rows * row)
      scaleRow(q, f32x4.splat(scale), <usize>rows * row)
      for (let i: usize = 0; i < TILE; i++) {
        store<f32>(tops + (i << 2), -Infinity)
        store<f32>(totals + (i << 2), 0)
      }
      const last = min<i32>(length, first + t + rows)
      for (let n = 0; n < last; n += <i32>TILE) {
        const count = min<i32>(<i32>TILE, last - n)
        packTransposed(headKeys + <usize>n * keyRow, keysDtype, d, count, <i32>TILE, spare, kt)
        widen(headValues + <usize>n * valueRow, valuesDtype, count * d, v)
        for (let r = 0; r < rows; r += 4) {
          const seen = first + t + r + 1 - n
          if (seen + 3 <= 0) continue
          const at = (<usize>r) << 2
          product(q + <usize>r * row, row, kt, TILE << 2, s, TILE << 2, d, <i32>TILE, false)
          for (let i = 0; i < 4; i++)
            softmax(
              s + <usize>i * TILE * 4,
              min<i32>(count, seen + i),
              tops + at + ((<usize>i) << 2),
              totals + at + ((<usize>i) << 2),
              o + <usize>(r + i) * row,
              row,
            )
          product(s, TILE << 2, v, row, o + <usize>r * row, row, count, d, true)
        }
      }
      for (let r = 0; r < rows; r++) {
        const total = load<f32>(totals + ((<usize>r) << 2))
        scaleRow(o + <usize>r * row, f32x4.splat(1 / total), row)
        const place = lse + ((<usize>hq * <usize>tokens + <usize>(t + r)) << 2)
        store<f32>(place, load<f32>(tops + ((<usize>r) << 2)) + NativeMathf.log(total))
      }
      memory.copy(output + at, o, <usize>rows * row)
    }
  }
}

/** One row of 64 scores of which `seen` count: becomes weights; its output is scaled to the new maximum. */
function softmax(s: usize, seen: i32, top: usize, total: usize, out: usize, row: usize): void {
  const end = s + TILE * 4
  for (let at = s + ((<usize>max<i32>(0, seen)) << 2); at < end; at += 4) store<f32>(at, -Infinity)
  let most = v128.load(s)
  for (let at = s + 16; at < end; at += 16) most = f32x4.pmax(most, v128.load(at))
  const old = load<f32>(top)
  const now = max<f32>(old, max4(most))
  const shift = f32x4.splat(now)
  let sum = f32x4.splat(0)
  for (let at = s; at < end; at += 16) {
    const p = exp4(f32x4.sub(v128.load(at), shift))
    v128.store(at, p)
    sum = f32x4.add(sum, p)
  }
  const kept: f32 = now > old ? exp(old - now) : 1
  if (kept !== 1) scaleRow(out, f32x4.splat(kept), row)
  store<f32>(top, now)
  store<f32>(total, load<f32>(total) * kept + sum4(sum))
}

function scaleRow(to: usize, w: v128, row: usize): void {
  for (let j: usize = 0; j < row; j += 16) v128.store(to + j, f32x4.mul(v128.load(to + j), w))
}
