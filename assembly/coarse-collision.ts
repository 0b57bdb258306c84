import { scratch } from './arena'
import { sortable } from './lanes'

/*
 * Votes of the centroids nearest to the query. A subspace's 256 centroids are sorted as u64 that order by score, then
 * by lower id: the low nibbles once, then sixteen runs that share a high nibble and take the low ones in that order,
 * so that only ties are left to mend, merged two by two.
 *
 *   | ordered f32 bits | ~id |   descending
 *
 * A walk with the zone's counts gives each centroid 0…6 votes; a key's score adds one byte of each subspace's table.
 * One load brings the ids of eight keys, whose eight sums stay in registers:
 *
 *   | k0 k1 … k7 |   byte b of eight keys, a u64 → eight i16
 */
export function coarseCollision(
  signs: usize,
  cap: i32,
  D: i32,
  counts: usize,
  heads: i32,
  choosers: i32,
  count: i32,
  y: usize,
  rho: f64,
  scores: usize,
  stride: i32,
): void {
  const B = D >> 3
  const votes = scratch(((<usize>B) << 8) + 4096 + 256 + 48)
  const order = votes + ((<usize>B) << 8)
  const spare = order + 4096
  const limits = spare + 256
  fillLimits(count, rho, limits)
  for (let h = 0; h < heads; h++) {
    const plane = signs + <usize>h * <usize>cap * <usize>B
    const out = scores + ((<usize>h * <usize>stride) << 1)
    const tally = counts ? counts + ((<usize>h * <usize>B) << 10) : 0
    for (let c = 0; c < choosers; c++, y += (<usize>D) << 2) {
      for (let b: usize = 0; b < <usize>B; b++) {
        sortCentroids(y + (b << 5), order, spare)
        walk(order, tally ? tally + (b << 10) : 0, limits, votes + (b << 8))
      }
      score(plane, B, (count + 15) >> 4, votes, out, c > 0)
    }
  }
}

/** ⌈N·ρ·x⌉ for the six tiers. */
function fillLimits(count: i32, rho: f64, limits: usize): void {
  const part = <f64>count * rho
  store<f64>(limits, Math.ceil(part * 0.05))
  store<f64>(limits, Math.ceil(part * 0.15), 8)
  store<f64>(limits, Math.ceil(part * 0.3), 16)
  store<f64>(limits, Math.ceil(part * 0.5), 24)
  store<f64>(limits, Math.ceil(part * 0.75), 32)
  store<f64>(limits, Math.ceil(part), 40)
}

/** [16] f32: ((±q0 ± q1) + (±q2 ± q3)), + where the bit is set. */
function signTable(q: usize, table: usize): void {
  for (let i: i32 = 0; i < 16; i++) {
    const s0 = flip(load<f32>(q), i & 1)
    const s1 = flip(load<f32>(q, 4), i & 2)
    const s2 = flip(load<f32>(q, 8), i & 4)
    const s3 = flip(load<f32>(q, 12), i & 8)
    store<f32>(table + ((<usize>i) << 2), s0 + s1 + (s2 + s3))
  }
}

function flip(q: f32, keep: i32): f32 {
  return keep ? q : -q
}

/** Fills `order` [256] u64, best first; `spare` takes two tables of 16 f32 and 16 u64, order + 2048 the merges. */
function sortCentroids(q: usize, order: usize, spare: usize): void {
  signTable(q, spare)
  signTable(q + 16, spare + 64)
  const lows = spare + 128
  for (let i: u32 = 0; i < 16; i++) insert(lows, i, sortable(load<f32>(spare + ((<usize>i) << 2)), i))
  for (let run: u32 = 0; run < 16; run++) {
    const high = load<f32>(spare + 64 + ((<usize>run) << 2))
    for (let i: u32 = 0; i < 16; i++) {
      const low = ~(<u32>load<u64>(lows + ((<usize>i) << 3)))
      const score = load<f32>(spare + ((<usize>low) << 2)) + high
      insert(order + ((<usize>run) << 7), i, sortable(score, (run << 4) | low))
    }
  }
  mergeRuns(order, order + 2048, 128)
  mergeRuns(order + 2048, order, 256)
  mergeRuns(order, order + 2048, 512)
  mergeRuns(order + 2048, order, 1024)
}

/** Puts a value among the `have` greater-first ones at `list`. */
function insert(list: usize, have: u32, value: u64): void {
  let to = list + ((<usize>have) << 3)
  for (; to > list && load<u64>(to - 8) < value; to -= 8) store<u64>(to, load<u64>(to - 8))
  store<u64>(to, value)
}

/** Merges neighbouring runs of `bytes` each. */
function mergeRuns(from: usize, to: usize, bytes: usize): void {
  for (const end = from + 2048; from < end; from += bytes << 1) {
    let a = from
    let b = from + bytes
    const aEnd = b
    const bEnd = b + bytes
    while (a < aEnd && b < bEnd) {
      const x = load<u64>(a)
      const z = load<u64>(b)
      const first = x > z
      store<u64>(to, first ? x : z)
      a += (<usize>first) << 3
      b += (<usize>!first) << 3
      to += 8
    }
    const left = a < aEnd ? aEnd - a : bEnd - b
    memory.copy(to, a < aEnd ? a : b, left)
    to += left
  }
}

/** Votes 0…6 by how many keys come before. */
function walk(order: usize, counts: usize, limits: usize, votes: usize): void {
  let before: f64 = 0
  let tier: usize = 0
  for (let i: usize = 0; i < 256; i++) {
    while (tier < 6 && before >= load<f64>(limits + (tier << 3))) tier++
    const id = <usize>~(<u32>load<u64>(order + (i << 3)))
    store<u8>(votes + id, <u8>(6 - tier))
    if (counts) before += <f64>load<u32>(counts + (id << 2))
  }
}

/** Eight keys at a time. */
function score(plane: usize, B: i32, blocks: i32, votes: usize, out: usize, old: bool): void {
  const block = (<usize>B) << 4
  for (let i = 0; i < blocks; i++, plane += block) {
    for (let half: usize = 0; half < 16; half += 8, out += 16) {
      const sums = eightKeys(plane + half, plane + block, votes)
      v128.store(out, old ? i16x8.max_s(sums, v128.load(out)) : sums)
    }
  }
}

function eightKeys(keys: usize, end: usize, table: usize): v128 {
  let s0: u32 = 0
  let s1: u32 = 0
  let s2: u32 = 0
  let s3: u32 = 0
  let s4: u32 = 0
  let s5: u32 = 0
  let s6: u32 = 0
  let s7: u32 = 0
  for (; keys < end; keys += 16, table += 256) {
    const ids = load<u64>(keys)
    const low = <u32>ids
    const high = <u32>(ids >> 32)
    s0 += load<u8>(table + (low & 255))
    s1 += load<u8>(table + ((low >> 8) & 255))
    s2 += load<u8>(table + ((low >> 16) & 255))
    s3 += load<u8>(table + (low >> 24))
    s4 += load<u8>(table + (high & 255))
    s5 += load<u8>(table + ((high >> 8) & 255))
    s6 += load<u8>(table + ((high >> 16) & 255))
    s7 += load<u8>(table + (high >> 24))
  }
  const low = i32x4.replace_lane(i32x4.splat(s0 | (s1 << 16)), 1, s2 | (s3 << 16))
  return i32x4.replace_lane(i32x4.replace_lane(low, 2, s4 | (s5 << 16)), 3, s6 | (s7 << 16))
}
