import { scratch } from './arena'
import { sortable } from './lanes'

/*
 * A heap of the K best so far, the worst on top. Sixteen values are compared with that worst one at once:
 *
 *   | v0 … v3 | v4 … v7 | v8 … v11 | v12 … v15 |   > worst → or of the masks → nearly always none
 *
 * A heap entry is a u64 that sorts by value, then by lower index: | ordered f32 bits | ~index |.
 */
export function topk(values: usize, ids: usize, heads: i32, count: i32, k: i32, topIds: usize, topValues: usize): void {
  const heap = scratch((<usize>k) << 3)
  for (let h = 0; h < heads; h++) {
    for (let n = 0; n < k; n++) store<u64>(heap + ((<usize>n) << 3), entry(values, n))
    for (let i = (k >> 1) - 1; i >= 0; i--) sink(heap, i, k)
    scan(values, k, count, heap, k)
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

/** Value n as a heap entry. */
function entry(values: usize, n: u32): u64 {
  return sortable(load<f32>(values + ((<usize>n) << 2)), n)
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

/** Equal values further on never enter: their index is higher. */
function scan(values: usize, from: i32, count: i32, heap: usize, k: i32): void {
  let n = from
  let worst = valueAt(values, heap)
  for (; n < count && n & 15; n++) worst = offer(values, n, worst, heap, k)
  for (; n + 16 <= count; n += 16) {
    const at = values + ((<usize>n) << 2)
    const edge = f32x4.splat(worst)
    const low = v128.or(f32x4.gt(v128.load(at), edge), f32x4.gt(v128.load(at, 16), edge))
    const high = v128.or(f32x4.gt(v128.load(at, 32), edge), f32x4.gt(v128.load(at, 48), edge))
    if (v128.any_true(v128.or(low, high))) for (let i = n; i < n + 16; i++) worst = offer(values, i, worst, heap, k)
  }
  for (; n < count; n++) worst = offer(values, n, worst, heap, k)
}

function valueAt(values: usize, heap: usize): f32 {
  return load<f32>(values + ((<usize>~(<u32>load<u64>(heap))) << 2))
}

function offer(values: usize, n: i32, worst: f32, heap: usize, k: i32): f32 {
  if (!(load<f32>(values + ((<usize>n) << 2)) > worst)) return worst
  store<u64>(heap, entry(values, n))
  sink(heap, 0, k)
  return valueAt(values, heap)
}
