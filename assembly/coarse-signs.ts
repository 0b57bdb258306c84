import { scratch } from './arena'

/*
 * Sixteen keys a vector: byte b of the sign plane of 16 consecutive keys lies side by side. With A = Σ over the set
 * bits of t − Σ over the negative t, the score is 2A − Σ|t|. Two tables of 16 bytes a subspace hold A for every
 * nibble, 0…60, so the four nibbles of two subspaces fit a byte.
 *
 *   | k0 k1 k2 … k15 |            byte b of sixteen keys
 *   low[k & 15] + high[k >> 4]    two swizzles; twice, 0…240
 *
 * Bytes are summed as i16 pairs: `all` takes the pair as it is, `odd` its upper byte; at the end the even keys are
 * all − (odd << 8). Two blocks share each four tables.
 */
/** Bytes of a plane that are read line by line before they are scored: far memory then comes at its full rate. */
const CHUNK: usize = 16384

export function coarseSigns(
  signs: usize,
  cap: i32,
  D: i32,
  heads: i32,
  choosers: i32,
  count: i32,
  t: usize,
  norms: usize,
  scores: usize,
  stride: i32,
): void {
  const B = D >> 3
  const tables = scratch(((<usize>B) << 5) + 32)
  const block = (<usize>B) << 4
  const blocks = (count + 15) >> 4
  for (let h = 0; h < heads; h++) {
    const plane = signs + <usize>h * <usize>cap * <usize>B
    const out = scores + ((<usize>h * <usize>stride) << 1)
    for (let c = 0; c < choosers; c++, t += D) {
      const total = makeTables(t, B, tables)
      const step = max<i32>(2, <i32>(CHUNK / block) & ~1)
      let touched: i32 = 0
      for (let from = 0; from < blocks; from += step) {
        const to = min<i32>(blocks, from + step)
        const end = plane + <usize>to * block
        for (let at = plane + <usize>from * block; at < end; at += 64) touched += load<i32>(at)
        for (let i = from; i < to; i += 2) {
          const j = min<i32>(i + 1, blocks - 1)
          const keys = plane + <usize>i * block
          const place = out + ((<usize>i) << 5)
          twoBlocks(keys, plane + <usize>j * block, B, tables, total, place, out + ((<usize>j) << 5), c > 0)
        }
      }
      // Without a use of them the touching loads would be left out.
      store<i32>(tables, touched)
    }
    if (norms) weigh(norms + <usize>h * <usize>cap, blocks, out)
  }
}

/** [B, 2, 16] bytes of A, a pair of zero tables after an odd B; returns Σ|t|. */
function makeTables(t: usize, B: i32, tables: usize): i32 {
  let total = 0
  for (const end = t + ((<usize>B) << 3); t < end; t += 4, tables += 16) {
    let sum = i8x16.splat(0)
    sum = i8x16.add(sum, part(load<i8>(t), i8x16(0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1)))
    sum = i8x16.add(sum, part(load<i8>(t, 1), i8x16(0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1)))
    sum = i8x16.add(sum, part(load<i8>(t, 2), i8x16(0, 0, 0, 0, -1, -1, -1, -1, 0, 0, 0, 0, -1, -1, -1, -1)))
    sum = i8x16.add(sum, part(load<i8>(t, 3), i8x16(0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1)))
    v128.store(tables, sum)
    for (let j: usize = 0; j < 4; j++) total += abs<i32>(load<i8>(t + j))
  }
  v128.store(tables, i8x16.splat(0))
  v128.store(tables, i8x16.splat(0), 16)
  return total
}

/** A of one coordinate for the sixteen nibbles: |t| where its bit agrees with the sign of t, else 0. */
function part(t: i8, set: v128): v128 {
  return v128.and(i8x16.splat(<i8>abs<i32>(t)), v128.xor(set, i8x16.splat(t < 0 ? -1 : 0)))
}

function lookup(keys: v128, low: v128, high: v128): v128 {
  const nibble = i8x16.splat(15)
  const upper = v128.and(i16x8.shr_u(keys, 4), nibble)
  return i8x16.add(i8x16.swizzle(low, v128.and(keys, nibble)), i8x16.swizzle(high, upper))
}

/** Sixteen scores 2A − Σ|t| in key order; keeps the greater of old and new. */
function emit(all: v128, odd: v128, total: i32, out: usize, old: bool): void {
  const shift = i16x8.splat(<i16>total)
  const even = i16x8.sub(all, i16x8.shl(odd, 8))
  const evens = i16x8.sub(i16x8.add(even, even), shift)
  const odds = i16x8.sub(i16x8.add(odd, odd), shift)
  let first = i16x8.shuffle(evens, odds, 0, 8, 1, 9, 2, 10, 3, 11)
  let last = i16x8.shuffle(evens, odds, 4, 12, 5, 13, 6, 14, 7, 15)
  if (old) {
    first = i16x8.max_s(first, v128.load(out))
    last = i16x8.max_s(last, v128.load(out, 16))
  }
  v128.store(out, first)
  v128.store(out, last, 16)
}

/** Two neighbouring blocks of 16 keys, or twice the same one. */
function twoBlocks(
  keys: usize,
  next: usize,
  B: i32,
  tables: usize,
  total: i32,
  out: usize,
  outNext: usize,
  old: bool,
): void {
  const zero = i16x8.splat(0)
  let all0 = zero
  let all1 = zero
  let odd0 = zero
  let odd1 = zero
  for (const end = tables + ((<usize>B) << 5); tables < end; tables += 64, keys += 32, next += 32) {
    const low = v128.load(tables)
    const high = v128.load(tables, 16)
    const low2 = v128.load(tables, 32)
    const high2 = v128.load(tables, 48)
    const sum0 = i8x16.add(lookup(v128.load(keys), low, high), lookup(v128.load(keys, 16), low2, high2))
    const sum1 = i8x16.add(lookup(v128.load(next), low, high), lookup(v128.load(next, 16), low2, high2))
    all0 = i16x8.add(all0, sum0)
    all1 = i16x8.add(all1, sum1)
    odd0 = i16x8.add(odd0, i16x8.shr_u(sum0, 8))
    odd1 = i16x8.add(odd1, i16x8.shr_u(sum1, 8))
  }
  emit(all0, odd0, total, out, old)
  emit(all1, odd1, total, outNext, old)
}

/** score = (s · n8) >> 8, arithmetic. */
function weigh(norms: usize, blocks: i32, out: usize): void {
  for (const end = out + ((<usize>blocks) << 5); out < end; out += 16, norms += 8) {
    const s = v128.load(out)
    const n = v128.load8x8_u(norms)
    const low = i32x4.shr_s(i32x4.extmul_low_i16x8_s(s, n), 8)
    const high = i32x4.shr_s(i32x4.extmul_high_i16x8_s(s, n), 8)
    v128.store(out, i16x8.narrow_i32x4_s(low, high))
  }
}
