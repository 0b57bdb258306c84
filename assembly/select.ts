import { scratch } from './arena'
import { emit, gather, prepare, RUN, splitAt } from './compact'

/*
 * Histogram, threshold, stable compaction, none of them with a branch that depends on a score (compact.ts).
 *
 *   scores → sample → bound → those at or above it → histogram → threshold, ties wanted → ids
 *
 * A sample of every sixteenth vector gives a bound that rather more than C scores reach; the rest looks at those only.
 * Where the guess was too high, or no sample pays, all scores are taken. Four histograms take turns, so that equal
 * neighbours do not wait for each other's store.
 */
export function select(
  scores: usize,
  stride: i32,
  heads: i32,
  count: i32,
  candidates: i32,
  lo: i32,
  hi: i32,
  step: i32,
  ids: usize,
): void {
  const shift = step - 1
  const bins = ((hi - lo) >> shift) + 1
  const room = ((<usize>(count + 16)) << 1) + 16
  const runs = <usize>(count + RUN - 1) / RUN
  const histogram = scratch(((<usize>bins) << 4) + ((<usize>candidates + 1 + runs) << 2) + 2 * room)
  const found = histogram + ((<usize>bins) << 4)
  const ends = found + ((<usize>candidates + 1) << 2)
  const kept = ends + (runs << 2)
  const numbers = kept + room
  prepare()
  for (let h = 0; h < heads; h++) {
    const bound = guess(scores, count, candidates, lo, shift, bins, histogram)
    let some = gatherRuns(scores, count, bound, kept, numbers, ends)
    if (some < candidates) some = gatherRuns(scores, count, lo, kept, numbers, ends)
    tally(kept, some, lo, shift, bins, histogram)
    let bin = bins - 1
    let wanted = candidates
    for (let have = total(histogram, bins, bin); have < wanted; have = total(histogram, bins, bin)) {
      wanted -= have
      bin--
    }
    const least = lo + (bin << shift)
    const above = least + (1 << shift)
    const split = splitAt(kept, some, least, above, wanted)
    let to = found
    let from = 0
    for (let r: usize = 0; r < runs; r++) {
      const end = load<i32>(ends + (r << 2))
      const turn = max<i32>(from, min<i32>(end, split))
      to = emit(kept + ((<usize>from) << 1), numbers + ((<usize>from) << 1), turn - from, least, <u32>r * RUN, to)
      to = emit(kept + ((<usize>turn) << 1), numbers + ((<usize>turn) << 1), end - turn, above, <u32>r * RUN, to)
      from = end
    }
    memory.copy(ids, found, (<usize>candidates) << 2)
    scores += (<usize>stride) << 1
    ids += (<usize>candidates) << 2
  }
}

/** Gathers all runs one behind the other; `ends` [runs] u32 tells them apart. */
function gatherRuns(scores: usize, count: i32, least: i32, kept: usize, numbers: usize, ends: usize): i32 {
  let some = 0
  for (let n = 0; n < count; n += RUN, ends += 4) {
    const at = (<usize>some) << 1
    some += gather(scores + ((<usize>n) << 1), min<i32>(RUN, count - n), least, kept + at, numbers + at)
    store<i32>(ends, some)
  }
  return some
}

/** A score that rather more than C scores reach, from the sample; `lo` where a sample would not pay. */
function guess(scores: usize, count: i32, C: i32, lo: i32, shift: i32, bins: i32, histogram: usize): i32 {
  if (count < 4096 || C > count >> 1) return lo
  memory.fill(histogram, 0, (<usize>bins) << 2)
  const end = scores + ((<usize>count & ~15) << 1)
  for (let at = scores; at < end; at += 512)
    for (let i: usize = 0; i < 32; i += 2) count1(histogram, <i32>load<i16>(at + i) - lo, shift)
  const expected = <f64>C / 16
  let wanted = <i32>(expected + 4 * Math.sqrt(expected)) + 8
  let bin = bins
  while (bin > 0 && wanted > 0) wanted -= load<i32>(histogram + ((<usize>--bin) << 2))
  return lo + (bin << shift)
}

function count1(histogram: usize, above: i32, shift: i32): void {
  const bin = histogram + ((<usize>(above >> shift)) << 2)
  store<i32>(bin, load<i32>(bin) + 1)
}

/** Fills the four histograms. */
function tally(scores: usize, count: i32, lo: i32, shift: i32, bins: i32, histogram: usize): void {
  const apart = (<usize>bins) << 2
  memory.fill(histogram, 0, apart << 2)
  let n = 0
  for (; n + 4 <= count; n += 4, scores += 8) {
    count1(histogram, <i32>load<i16>(scores) - lo, shift)
    count1(histogram + apart, <i32>load<i16>(scores, 2) - lo, shift)
    count1(histogram + 2 * apart, <i32>load<i16>(scores, 4) - lo, shift)
    count1(histogram + 3 * apart, <i32>load<i16>(scores, 6) - lo, shift)
  }
  for (; n < count; n++, scores += 2) count1(histogram, <i32>load<i16>(scores) - lo, shift)
}

function total(histogram: usize, bins: i32, bin: i32): i32 {
  const at = histogram + ((<usize>bin) << 2)
  const apart = (<usize>bins) << 2
  return load<i32>(at) + load<i32>(at + apart) + load<i32>(at + 2 * apart) + load<i32>(at + 3 * apart)
}
