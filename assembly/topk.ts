import { scratch } from './arena'
import { max4, sortable } from './lanes'

/*
 * A heap of the K best so far, the worst on top. A histogram of the first values gives a bound that K of them reach, so
 * that few enter the heap only to leave it. Sixteen values are compared at once, with the bound, then with the worst:
 *
 *   | v0 … v3 | v4 … v7 | v8 … v11 | v12 … v15 |   ≥ edge → 16 bits → nearly always none
 *
 * A heap entry is a u64 that sorts by value, then by lower index: | ordered f32 bits | ~index |.
 */
const BINS: i32 = 256
/** Values that the histogram looks at, if K are not more. */
const FIRST: i32 = 4096

export function topk(values: usize, ids: usize, heads: i32, count: i32, k: i32, topIds: usize, topValues: usize): void {
  const heap = scratch(((<usize>k) << 3) + ((<usize>BINS) << 2))
  for (let h = 0; h < heads; h++) {
    scan(values, count, bound(values, min<i32>(count, max<i32>(FIRST, k)), k, heap + ((<usize>k) << 3)), heap, k)
    for (let last = k - 1; last > 0; last--) {
      const best = load<u64>(heap + ((<usize>last) << 3))
      store<u64>(heap + ((<usize>last) << 3), load<u64>(heap))
      store<u64>(heap, best)
      sink(heap, 0, last)
    }
    for (let i = 0; i < k; i++) {
      const n = ~(<u32>load<u64>(heap + ((<usize>i) << 3)))
      store<u32>(topIds + ((<usize>i) << 2), ids ? load<u32>(ids + ((<usize>n) << 2)) : n)
      store<f32>(topValues + ((<usize>i) << 2), load<f32>(values + ((<usize>n) << 2)))
    }
    values += (<usize>count) << 2
    if (ids) ids += (<usize>count) << 2
    topIds += (<usize>k) << 2
    topValues += (<usize>k) << 2
  }
}

/** Moves entry i down until no child is less. */
function sink(heap: usize, i: i32, size: i32): void {
  const value = load<u64>(heap + ((<usize>i) << 3))
  for (;;) {
    let child = 2 * i + 1
    if (child >= size) break
    let less = load<u64>(heap + ((<usize>child) << 3))
    if (child + 1 < size) {
      const right = load<u64>(heap + ((<usize>child) << 3), 8)
      if (right < less) {
        less = right
        child++
      }
    }
    if (value <= less) break
    store<u64>(heap + ((<usize>i) << 3), less)
    i = child
  }
  store<u64>(heap + ((<usize>i) << 3), value)
}

/** A value that at least k of `some` reach: half a bin below the bin of the k-th, more than all that rounding moves. */
function bound(values: usize, some: i32, k: i32, bins: usize): f32 {
  const end = values + ((<usize>some & ~3) << 2)
  if ((some & ~3) < k) return -Infinity
  let least = v128.load(values)
  let most = least
  for (let at = values; at < end; at += 16) {
    least = f32x4.pmin(least, v128.load(at))
    most = f32x4.pmax(most, v128.load(at))
  }
  const low = -max4(f32x4.neg(least))
  const scale = <f32>(BINS - 1) / (max4(most) - low)
  memory.fill(bins, 0, (<usize>BINS) << 2)
  for (let at = values; at < end; at += 16) {
    // Where the range is no number, or none to speak of, all are in one bin.
    const place = f32x4.mul(f32x4.sub(v128.load(at), f32x4.splat(low)), f32x4.splat(scale))
    const bin = i32x4.shl(i32x4.trunc_sat_f32x4_u(f32x4.min(place, f32x4.splat(<f32>(BINS - 1)))), 2)
    count1(bins + <usize>i32x4.extract_lane(bin, 0))
    count1(bins + <usize>i32x4.extract_lane(bin, 1))
    count1(bins + <usize>i32x4.extract_lane(bin, 2))
    count1(bins + <usize>i32x4.extract_lane(bin, 3))
  }
  let bin = BINS
  while (k > 0) k -= load<i32>(bins + ((<usize>--bin) << 2))
  return low + (<f32>bin - 0.5) / scale
}

function count1(bin: usize): void {
  store<i32>(bin, load<i32>(bin) + 1)
}

/** Fills the heap with the k best of the values, of which k reach `edge`. Equal ones further on never replace others. */
function scan(values: usize, count: i32, edge: f32, heap: usize, k: i32): void {
  let have = 0
  for (let n = 0; n < count; n += 16) {
    let bits = reach(values + ((<usize>n) << 2), edge)
    if (n + 16 > count) bits &= (1 << (count - n)) - 1
    for (; bits; bits &= bits - 1) {
      const i = n + ctz(bits)
      const entry = sortable(load<f32>(values + ((<usize>i) << 2)), i)
      if (have < k) {
        store<u64>(heap + ((<usize>have) << 3), entry)
        if (++have < k) continue
        for (let j = (k >> 1) - 1; j >= 0; j--) sink(heap, j, k)
      } else if (entry > load<u64>(heap)) {
        store<u64>(heap, entry)
        sink(heap, 0, k)
      } else continue
      edge = load<f32>(values + ((<usize>~(<u32>load<u64>(heap))) << 2))
    }
  }
  // NaN reaches nothing: where broken codes gave it, the first key stands in, and no number from old scratch.
  for (; have < k; have++) store<u64>(heap + ((<usize>have) << 3), 0xffffffff)
}

/** Bit i is set where value i of sixteen is at least `edge`. */
function reach(at: usize, edge: f32): i32 {
  const least = f32x4.splat(edge)
  const low = i16x8.narrow_i32x4_s(f32x4.ge(v128.load(at), least), f32x4.ge(v128.load(at, 16), least))
  const high = i16x8.narrow_i32x4_s(f32x4.ge(v128.load(at, 32), least), f32x4.ge(v128.load(at, 48), least))
  return i8x16.bitmask(i8x16.narrow_i16x8_s(low, high))
}
