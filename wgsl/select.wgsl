// select: scores [H, stride] i16 -> ids [H, C] u32, the C best in index order, ties at the threshold to the lower index.
// Two passes over chunks of a head: `select-count` finds the threshold from the histogram and counts each chunk,
// `select-write` places the chosen at their rank, and clears the histogram for the next time. Scratch a job, in words:
// histogram [H, BINS] | threshold and ties to keep [H, 2] | chunk counts above and at the threshold [H, 256, 2].
// Prefix sums in two levels, 16 threads of 16 entries, so that four tiles of 2048 keys cost 3 barriers.
// Moves 2 bytes a key twice (the second time from cache) and writes 4 bytes a candidate.

fn scoreAt(word: u32, k: u32) -> i32 { return extractBits(bitcast<i32>(word), 16u * k, 16u); }
fn binOf(score: i32) -> u32 { return u32(score - LO) >> SHIFT; }

// The scores of keys n..n + 7, the last again beyond the end; the loads do not wait for each other.
fn fetch(row: u32, n: u32, end: u32) -> vec4<u32> {
  let last = row + (end - 1u) / 2u;
  let at = row + n / 2u;
  return vec4<u32>(scores[min(last, at)], scores[min(last, at + 1u)], scores[min(last, at + 2u)], scores[min(last, at + 3u)]);
}
// Two bits a key: above the threshold, at it.
const ABOVE = 0x55555555u;
const TIED = 0xaaaaaaaau;
fn marksOf(words: vec4<u32>, n: u32, end: u32, threshold: u32) -> u32 {
  if (n >= end) { return 0u; }
  var marks = 0u;
  for (var k = 0u; k < 8u; k++) {
    let bin = binOf(scoreAt(words[k / 2u], k % 2u));
    marks |= select(select(0u, 2u, bin == threshold), 1u, bin > threshold) << (2u * k);
  }
  return select(marks, marks & ((1u << (2u * min(end - n, 8u))) - 1u), end - n < 8u);
}
// Eight keys of each of four tiles, 2048 keys apart, whose loads go out together: tiles 0 and 1 in x, 2 and 3 in y.
fn fourTiles(row: u32, n: u32, end: u32, threshold: u32) -> vec2<u32> {
  let a = fetch(row, n, end);
  let b = fetch(row, n + 2048u, end);
  let c = fetch(row, n + 4096u, end);
  let d = fetch(row, n + 6144u, end);
  return vec2<u32>(marksOf(a, n, end, threshold) | (marksOf(b, n + 2048u, end, threshold) << 16u),
    marksOf(c, n + 4096u, end, threshold) | (marksOf(d, n + 6144u, end, threshold) << 16u));
}

//! program select-histogram alone uses histogram
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let begin = blockOf(wid, job) * job.chunk;
  if (begin >= job.count) { return; }
  let end = min(begin + job.chunk, job.count);
  let hist = job.at_scratch + h * BINS;
  for (var n = begin + lid; n < end; n += 256u) {
    let word = scores[job.at_scores + (h * job.stride + n) / 2u];
    tally(extractBits(bitcast<i32>(word), 16u * (n % 2u), 16u), lid, hist);
  }
  workgroupBarrier();
  flush(lid, hist);
}

//! program select-count uses scan
var<workgroup> found: vec2<u32>;
fn binAt(hist: u32, i: u32) -> u32 { return scratch[hist + BINS - 1u - min(i, BINS - 1u)]; }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let block = blockOf(wid, job);
  let begin = block * job.chunk;
  if (begin >= job.count) { return; }
  let hist = job.at_scratch + h * BINS;
  // Thread 0 holds the highest bins; the prefix runs from the top.
  const PER = (BINS + 255u) / 256u;
  var own = 0u;
  for (var k = 0u; k < PER; k += 4u) {
    let i = lid * PER + k;
    let four = vec4<u32>(binAt(hist, i), binAt(hist, i + 1u), binAt(hist, i + 2u), binAt(hist, i + 3u));
    for (var j = 0u; j < 4u; j++) { if (k + j < PER && i + j < BINS) { own += four[j]; } }
  }
  let before = scan(vec2<u32>(own, 0u), lid).before.x;
  if (before < job.candidates && before + own >= job.candidates) {
    var left = job.candidates - before;
    var i = lid * PER;
    loop {
      let here = scratch[hist + BINS - 1u - i];
      if (here >= left) { break; }
      left -= here;
      i++;
    }
    found = vec2<u32>(BINS - 1u - i, left);
    if (block == 0u) {
      scratch[job.at_scratch + job.state + 2u * h] = found.x;
      scratch[job.at_scratch + job.state + 2u * h + 1u] = found.y;
    }
  }
  workgroupBarrier();
  let threshold = found.x;
  let end = min(begin + job.chunk, job.count);
  let row = job.at_scores + h * (job.stride / 2u);
  var mine = vec2<u32>(0u);
  for (var n = begin + 8u * lid; n < end; n += 8192u) {
    let marks = fourTiles(row, n, end, threshold);
    mine += vec2<u32>(countOneBits(marks.x & ABOVE) + countOneBits(marks.y & ABOVE),
      countOneBits(marks.x & TIED) + countOneBits(marks.y & TIED));
  }
  let all = scan(mine, lid).all;
  if (lid == 0u) {
    let at = job.at_scratch + job.blocks + 2u * (h * 256u + block);
    scratch[at] = all.x;
    scratch[at + 1u] = all.y;
  }
}

//! program select-write uses scan

// Writes the marked among keys n..n + 7 and returns the tile's end: keys above and ties before it.
fn place(marks: u32, n: u32, base: vec2<u32>, before: u32, all: u32, keep: u32, out: u32) -> vec2<u32> {
  var at = base + vec2<u32>(before & 0xffffu, before >> 16u);
  for (var left = marks; left != 0u; left &= left - 1u) {
    let bit = countTrailingZeros(left);
    let tied = bit & 1u;
    if (tied == 0u || at.y < keep) { ids[out + at.x + min(at.y, keep)] = n + bit / 2u; }
    at += vec2<u32>(1u - tied, tied);
  }
  return base + vec2<u32>(all & 0xffffu, all >> 16u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let block = blockOf(wid, job);
  let begin = block * job.chunk;
  if (begin >= job.count) { return; }
  let blocks = (job.count + job.chunk - 1u) / job.chunk;
  for (var i = block * 256u + lid; i < BINS; i += blocks * 256u) { scratch[job.at_scratch + h * BINS + i] = 0u; }
  var earlier = vec2<u32>(0u);
  if (lid < block) {
    let at = job.at_scratch + job.blocks + 2u * (h * 256u + lid);
    earlier = vec2<u32>(scratch[at], scratch[at + 1u]);
  }
  let threshold = scratch[job.at_scratch + job.state + 2u * h];
  let keep = scratch[job.at_scratch + job.state + 2u * h + 1u];
  let end = min(begin + job.chunk, job.count);
  let row = job.at_scores + h * (job.stride / 2u);
  let out = job.at_ids + h * job.candidates;
  var base = scan(earlier, lid).all;
  for (var tile = begin; tile < end; tile += 8192u) {
    let n = tile + 8u * lid;
    let marks = fourTiles(row, n, end, threshold);
    let halves = vec4<u32>(marks.x & 0xffffu, marks.x >> 16u, marks.y & 0xffffu, marks.y >> 16u);
    // Of each tile, keys above in the lower half of a word and ties in the upper: 2048 fit.
    let own = countOneBits(halves & vec4<u32>(ABOVE)) | (countOneBits(halves & vec4<u32>(TIED)) << vec4<u32>(16u));
    let sums = scanTiles(own, lid);
    base = place(halves.x, n, base, sums.before.x, sums.all.x, keep, out);
    base = place(halves.y, n + 2048u, base, sums.before.y, sums.all.y, keep, out);
    base = place(halves.z, n + 4096u, base, sums.before.z, sums.all.z, keep, out);
    base = place(halves.w, n + 6144u, base, sums.before.w, sums.all.w, keep, out);
  }
}
