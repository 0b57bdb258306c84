/*
 * RMS normalization; squares and the scale in f64, so that no finite row overflows.
 *
 *   | x0 x1 x2 x3 | → | x0 x1 | x2 x3 |   two vectors of f64 lanes
 */
export function norm(input: usize, rows: i32, width: i32, weight: usize, epsilon: f64, output: usize): void {
  const row = (<usize>width) << 2
  for (const end = input + <usize>rows * row; input < end; input += row, output += row) {
    const scale = f64x2.splat(1 / sqrt<f64>(squares(input, row) / <f64>width + epsilon))
    for (let j: usize = 0; j < row; j += 16) {
      const low = f32x4.demote_f64x2_zero(f64x2.mul(lowTwo(input + j), scale))
      const high = f32x4.demote_f64x2_zero(f64x2.mul(highTwo(input + j), scale))
      v128.store(output + j, f32x4.mul(i64x2.shuffle(low, high, 0, 2), v128.load(weight + j)))
    }
  }
}

function squares(x: usize, row: usize): f64 {
  let low = f64x2.splat(0)
  let high = low
  for (const end = x + row; x < end; x += 16) {
    const a = lowTwo(x)
    const b = highTwo(x)
    low = f64x2.add(low, f64x2.mul(a, a))
    high = f64x2.add(high, f64x2.mul(b, b))
  }
  const sum = f64x2.add(low, high)
  return f64x2.extract_lane(sum, 0) + f64x2.extract_lane(sum, 1)
}

function lowTwo(x: usize): v128 {
  return f64x2.promote_low_f32x4(v128.load64_zero(x))
}

function highTwo(x: usize): v128 {
  return f64x2.promote_low_f32x4(v128.load64_zero(x, 8))
}
