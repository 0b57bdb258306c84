import { SHUFFLES } from './arena'

/*
 * Stable compaction without branches: eight bits of a compare's mask choose one of 256 shuffles that bring the true
 * lanes to the front; all eight are stored, and the end moves on by their number.
 *
 *   | s0 s1 s2 s3 s4 s5 s6 s7 |  > edge → 0b01100010 → shuffle → | s1 s5 s6 0 0 0 0 0 |   end += 3
 */
let prepared = false

/** Fills the table of shuffles at first use: [256, 16] byte indices, 0x80 (a zero) behind the true lanes. */
export function prepare(): void {
  if (prepared) return
  memory.fill(SHUFFLES, 0x80, 4096)
  for (let mask: u32 = 0; mask < 256; mask++) {
    let at = SHUFFLES + ((<usize>mask) << 4)
    for (let bits = mask; bits; bits &= bits - 1, at += 2) store<u16>(at, 0x100 + ctz(bits) * 0x202)
  }
  prepared = true
}

function shuffleOf(bits: i32): v128 {
  return v128.load(SHUFFLES + ((<usize>bits) << 4))
}

/** Keys of one run of `gather`: as many as 16 bits can number. */
export const RUN = 65536

/**
 * The scores of up to 65,536 keys that are at least `least`, in order, and their numbers in the run; returns how many.
 * Both outputs take 16 bytes more than they keep.
 */
export function gather(scores: usize, count: i32, least: i32, kept: usize, numbers: usize): i32 {
  const edge = i16x8.splat(<i16>(least - 1))
  const start = kept
  let lanes = i16x8(0, 1, 2, 3, 4, 5, 6, 7)
  for (let n = 0; n < count; n += 16, scores += 32) {
    const low = v128.load(scores)
    const high = v128.load(scores, 16)
    let bits = i8x16.bitmask(i8x16.narrow_i16x8_s(i16x8.gt_s(low, edge), i16x8.gt_s(high, edge)))
    if (n + 16 > count) bits &= (1 << (count - n)) - 1
    const first = shuffleOf(bits & 255)
    const last = shuffleOf(bits >> 8)
    v128.store(kept, i8x16.swizzle(low, first))
    v128.store(numbers, i8x16.swizzle(lanes, first))
    const step = (<usize>popcnt(bits & 255)) << 1
    lanes = i16x8.add(lanes, i16x8.splat(8))
    v128.store(kept + step, i8x16.swizzle(high, last))
    v128.store(numbers + step, i8x16.swizzle(lanes, last))
    lanes = i16x8.add(lanes, i16x8.splat(8))
    const both = (<usize>popcnt(bits)) << 1
    kept += both
    numbers += both
  }
  return <i32>((kept - start) >> 1)
}

/** base + number of the kept scores that are at least `least`, as u32; returns their end. Writes one u32 more. */
export function emit(kept: usize, numbers: usize, some: i32, least: i32, base: u32, to: usize): usize {
  for (let i: usize = 0; i < (<usize>some) << 1; i += 2) {
    store<u32>(to, base + load<u16>(numbers + i))
    to += (<usize>(<i32>load<i16>(kept + i) >= least)) << 2
  }
  return to
}

/** The index behind the `wanted`-th score in [least, above). */
export function splitAt(scores: usize, count: i32, least: i32, above: i32, wanted: i32): i32 {
  const low = i16x8.splat(<i16>(least - 1))
  const high = i16x8.splat(<i16>(above - 1))
  for (let n = 0; n < count; n += 8, scores += 16) {
    const s = v128.load(scores)
    let bits = i16x8.bitmask(v128.andnot(i16x8.gt_s(s, low), i16x8.gt_s(s, high)))
    const some = popcnt(bits)
    if (some < wanted) {
      wanted -= some
      continue
    }
    while (--wanted > 0) bits &= bits - 1
    return min<i32>(count, n + ctz(bits) + 1)
  }
  return count
}
