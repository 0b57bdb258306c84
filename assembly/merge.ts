import { scratch } from './arena'
import { exp } from './lanes'

/*
 * Partial states [parts, Hq, d + 2] into outputs: each part weighs e^(its max − the greatest max). Four dimensions at a
 * time are summed over the parts in f64, so that many parts lose no more than one.
 *
 *   | Σp·v, d f32 ... | max | Σp |   rows are 8-byte aligned; loads need no alignment
 *   | v0 v1 v2 v3 | → | v0 v1 | v2 v3 |   two sums of f64 lanes
 */
export function merge(partials: usize, parts: i32, queryHeads: i32, d: i32, output: usize, lse: usize): void {
  const row = (<usize>d) << 2
  const state = row + 8
  const part = <usize>queryHeads * state
  const weights = scratch((<usize>parts) << 3)
  for (let h = 0; h < queryHeads; h++, partials += state, output += row, lse += 4) {
    let top: f32 = -Infinity
    for (let p = 0; p < parts; p++) top = max<f32>(top, load<f32>(partials + <usize>p * part + row))
    if (top === -Infinity) {
      memory.fill(output, 0, row)
      store<f32>(lse, top)
      continue
    }
    let sum: f64 = 0
    for (let p: usize = 0; p < <usize>parts; p++) {
      const from = partials + p * part + row
      const w = <f64>exp(load<f32>(from) - top)
      store<f64>(weights + (p << 3), w)
      if (w > 0) sum += w * <f64>load<f32>(from, 4)
    }
    for (let j: usize = 0; j < row; j += 16) mix(partials + j, parts, part, weights, sum, output + j)
    store<f32>(lse, top + NativeMathf.log(<f32>sum))
  }
}

/** Σ w·v / sum of four dimensions; parts that weigh nothing are not read. */
function mix(from: usize, parts: i32, part: usize, weights: usize, sum: f64, to: usize): void {
  let low = f64x2.splat(0)
  let high = low
  for (const end = weights + ((<usize>parts) << 3); weights < end; weights += 8, from += part) {
    if (load<f64>(weights) === 0) continue
    const w = v128.load_splat<u64>(weights)
    const v = v128.load(from)
    low = f64x2.add(low, f64x2.mul(w, f64x2.promote_low_f32x4(v)))
    high = f64x2.add(high, f64x2.mul(w, f64x2.promote_low_f32x4(i64x2.shuffle(v, v, 1, 0))))
  }
  const total = f64x2.splat(sum)
  const first = f32x4.demote_f64x2_zero(f64x2.div(low, total))
  const second = f32x4.demote_f64x2_zero(f64x2.div(high, total))
  v128.store(to, i64x2.shuffle(first, second, 0, 2))
}
