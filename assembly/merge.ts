import { exp } from './lanes'

/*
 * Partial states [parts, Hq, d + 2] into outputs: each part weighs e^(its max − the greatest max).
 *
 *   | Σp·v, d lanes by four ... | max | Σp |   rows are 8-byte aligned; loads need no alignment
 */
export function merge(partials: usize, parts: i32, queryHeads: i32, d: i32, output: usize, lse: usize): void {
  const row = (<usize>d) << 2
  const state = row + 8
  const part = <usize>queryHeads * state
  for (let h = 0; h < queryHeads; h++, partials += state, output += row, lse += 4) {
    let top: f32 = -Infinity
    for (let p = 0; p < parts; p++) top = max<f32>(top, load<f32>(partials + <usize>p * part + row))
    memory.fill(output, 0, row)
    if (top === -Infinity) {
      store<f32>(lse, top)
      continue
    }
    let sum: f32 = 0
    for (let p = 0; p < parts; p++) {
      const from = partials + <usize>p * part
      const w = exp(load<f32>(from + row) - top)
      if (w === 0) continue
      sum += w * load<f32>(from + row, 4)
      addScaled(output, from, f32x4.splat(w), row)
    }
    scaleRow(output, f32x4.splat(1 / sum), row)
    store<f32>(lse, top + NativeMathf.log(sum))
  }
}

function addScaled(to: usize, from: usize, w: v128, row: usize): void {
  for (let j: usize = 0; j < row; j += 16)
    v128.store(to + j, f32x4.add(v128.load(to + j), f32x4.mul(w, v128.load(from + j))))
}

export function scaleRow(to: usize, w: v128, row: usize): void {
  for (let j: usize = 0; j < row; j += 16) v128.store(to + j, f32x4.mul(v128.load(to + j), w))
}
