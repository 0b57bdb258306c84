import { scratch } from './arena'
import { elementBytes, F16, F32, rowF32 } from './lanes'

/*
 * Tokens [H, T, d] of one type into rows [H, cap, d] of another, on bit patterns:
 *
 *   f32 | s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm |
 *   bf16| s eeeeeeee mmmmmmm |                  + 0x7fff + the lowest kept bit, then the upper half
 *   f16 | s eeeee mmmmmmmmmm |                  shift by 13, or by what a subnormal's exponent asks for
 *
 * An exponent of ones, before or after rounding, is stored as 0 and counted.
 */
export function storeTokens(
  tokens: usize,
  dtype: i32,
  heads: i32,
  count: i32,
  d: i32,
  rows: usize,
  rowDtype: i32,
  cap: i32,
  at: i32,
  refused: usize,
): void {
  const from = <usize>d * elementBytes(dtype)
  const to = <usize>d * elementBytes(rowDtype)
  const spare = scratch((<usize>d) << 2)
  let lost: u32 = 0
  for (let h = 0; h < heads; h++) {
    let row = rows + (<usize>h * <usize>cap + <usize>at) * to
    for (let t = 0; t < count; t++, tokens += from, row += to) {
      lost += storeRow(rowF32(tokens, dtype, d, spare), d, row, rowDtype)
    }
  }
  store<u32>(refused, load<u32>(refused) + lost)
}

/** One row from f32 at `x`; returns how many of its values were refused. */
function storeRow(x: usize, d: i32, row: usize, dtype: i32): u32 {
  let lost: u32 = 0
  for (const end = x + ((<usize>d) << 2); x < end; x += 4) {
    const bits = load<u32>(x)
    if (dtype === F32) {
      const finite = (bits & 0x7f800000) !== 0x7f800000
      store<u32>(row, finite ? bits : 0)
      lost += u32(!finite)
      row += 4
    } else {
      const half = dtype === F16 ? f16Bits(bits) : bf16Bits(bits)
      const top: u32 = dtype === F16 ? 0x7c00 : 0x7f80
      const finite = (half & top) !== top
      store<u16>(row, finite ? half : 0)
      lost += u32(!finite)
      row += 2
    }
  }
  return lost
}

function bf16Bits(bits: u32): u32 {
  if ((bits & 0x7f800000) === 0x7f800000) return 0x7f80
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16
}

function f16Bits(bits: u32): u32 {
  const sign = (bits >> 16) & 0x8000
  const size = bits & 0x7fffffff
  if (size >= 0x477ff000) return 0x7c00
  if (size < 0x33000000) return sign
  const e = size >> 23
  const m = (size & 0x7fffff) | 0x800000
  const shift = e < 113 ? 126 - e : 13
  const kept = m >> shift
  const rest = m & ((1 << shift) - 1)
  const half = (<u32>1) << (shift - 1)
  const rounded = kept + u32(rest > half || (rest === half && (kept & 1) === 1))
  return sign | (e < 113 ? rounded : rounded + ((e - 113) << 10))
}
