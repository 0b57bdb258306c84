import { elementBytes, pow2, rowF32 } from './lanes'
import { exponentOf } from './rotate'

/*
 * Norm bytes n8 = floor(‖k‖ · 2^−e): when e grows by s, every byte shifts right by s, floor of floor.
 *
 *   | n0 | n1 | n2 | …   one byte a key, each >> s
 */
/** Raises e of one head to what the new keys need; shifts the `have` bytes already there. */
export function raiseNormExponent(
  key: usize,
  dtype: i32,
  d: i32,
  count: i32,
  spare: usize,
  norms: usize,
  have: i32,
  normExp: usize,
): void {
  const row = <usize>d * elementBytes(dtype)
  let squares: f64 = 0
  for (let i = 0; i < count; i++, key += row) squares = max<f64>(squares, squaredNorm(rowF32(key, dtype, d, spare), d))
  if (squares === 0) return
  const need = exponentOfF64(Math.sqrt(squares)) - 7
  const now = load<i32>(normExp)
  if (need <= now) return
  store<i32>(normExp, need)
  const shift = min<i32>(8, need - now)
  for (let n: usize = 0; n < <usize>have; n++) store<u8>(norms + n, <u32>load<u8>(norms + n) >> shift)
}

function exponentOfF64(x: f64): i32 {
  return <i32>(reinterpret<u64>(x) >> 52) - 1023
}

/** ‖k‖² in f64, the coordinates that the rotation drops counted as 0. */
export function squaredNorm(x: usize, d: i32): f64 {
  const least = max<f64>(pow2(-126), pow2(exponentOf(x, d) - 60))
  let sum: f64 = 0
  for (const end = x + ((<usize>d) << 2); x < end; x += 4) {
    const v = <f64>load<f32>(x)
    if (Math.abs(v) >= least) sum += v * v
  }
  return sum
}
