import { scratch } from './arena'
import { elementBytes, F32 } from './lanes'
import { fourByOne, packedRows, packRows, twoByFour } from './products'

/*
 * y [T, m] = x [T, n] · Wᵀ, W [m, n], by the products of products.ts:
 *
 *   T = 1      four stored weight rows against the token
 *   T = 2 … 8  two stored weight rows against four packed tokens
 *   above      two tokens against four packed weight rows, a panel of which meets all tokens before the next is packed
 */
/** The most tokens for which weights are widened in registers. */
const FEW: i32 = 8
/** Bytes of packed weight rows, and of the tokens that meet them. */
const PANEL: i32 = 1 << 16
const BLOCK: i32 = 1 << 18

export function linear(
  input: usize,
  tokens: i32,
  weights: usize,
  dtype: i32,
  n: i32,
  m: i32,
  bias: usize,
  add: bool,
  output: usize,
): void {
  if (tokens === 1) single(input, weights, dtype, n, m, bias, add, output)
  else if (tokens <= FEW) few(input, tokens, weights, dtype, n, m, bias, add, output)
  else many(input, tokens, weights, dtype, n, m, bias, add, output)
}

function single(x: usize, weights: usize, dtype: i32, n: i32, m: i32, bias: usize, add: bool, y: usize): void {
  const bytes = <usize>n * elementBytes(dtype)
  const row = (<usize>n) << 2
  const packed = scratch(32 + 4 * row)
  const sums = packed + 4 * row
  for (let o = 0; o < m; o += 4) {
    const some = min<i32>(4, m - o)
    const w = weights + <usize>o * bytes
    // Fewer than four rows stand packed, with the token in place of a stored row.
    if (some === 4) v128.store(sums, fourByOne(w, bytes, dtype, x, n))
    else {
      packRows(w, dtype, some, n, packed)
      twoByFour(x, x, F32, packed, n, sums)
    }
    for (let r = 0; r < some; r++) put(load<f32>(sums + ((<usize>r) << 2)), o + r, bias, add, y)
  }
}

function few(
  x: usize,
  tokens: i32,
  weights: usize,
  dtype: i32,
  n: i32,
  m: i32,
  bias: usize,
  add: bool,
  y: usize,
): void {
  const bytes = <usize>n * elementBytes(dtype)
  const row = (<usize>n) << 2
  const packed = scratch(32 + <usize>packedRows(tokens) * row)
  const sums = packed + <usize>packedRows(tokens) * row
  packRows(x, F32, tokens, n, packed)
  for (let o = 0; o < m; o += 2) {
    const w = weights + <usize>o * bytes
    const some = min<i32>(2, m - o)
    for (let t = 0; t < tokens; t++) {
      if ((t & 3) === 0) twoByFour(w, some === 2 ? w + bytes : w, dtype, packed + <usize>t * row, n, sums)
      const from = sums + ((<usize>(t & 3)) << 2)
      const to = y + ((<usize>t * <usize>m) << 2)
      put(load<f32>(from), o, bias, add, to)
      if (some === 2) put(load<f32>(from, 16), o + 1, bias, add, to)
    }
  }
}

function many(
  x: usize,
  tokens: i32,
  weights: usize,
  dtype: i32,
  n: i32,
  m: i32,
  bias: usize,
  add: bool,
  y: usize,
): void {
  const bytes = <usize>n * elementBytes(dtype)
  const row = (<usize>n) << 2
  const panel = max<i32>(4, (PANEL / <i32>row) & ~3)
  const block = max<i32>(FEW, (BLOCK / <i32>row) & ~1)
  const packed = scratch(32 + <usize>panel * row)
  const sums = packed + <usize>panel * row
  for (let first = 0; first < tokens; first += block) {
    const last = min<i32>(tokens, first + block)
    for (let o = 0; o < m; o += panel) {
      const rows = min<i32>(panel, m - o)
      packRows(weights + <usize>o * bytes, dtype, rows, n, packed)
      for (let t = first; t < last; t += 2) {
        const x0 = x + <usize>t * row
        const y0 = y + ((<usize>t * <usize>m) << 2)
        const two = t + 1 < last
        for (let r = 0; r < rows; r++) {
          if ((r & 3) === 0) twoByFour(x0, two ? x0 + row : x0, F32, packed + <usize>r * row, n, sums)
          const from = sums + ((<usize>(r & 3)) << 2)
          put(load<f32>(from), o + r, bias, add, y0)
          if (two) put(load<f32>(from, 16), o + r, bias, add, y0 + ((<usize>m) << 2))
        }
      }
    }
  }
}

/** A sum becomes output `o` of a token, with its bias, on top of what is there or in its place. */
function put(sum: f32, o: i32, bias: usize, add: bool, y: usize): void {
  const at = (<usize>o) << 2
  if (bias) sum += load<f32>(bias + at)
  store<f32>(y + at, add ? load<f32>(y + at) + sum : sum)
}
