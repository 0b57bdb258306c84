// select: scores [H, stride] i16 -> ids [H, C] u32, the C best in index order, ties at the threshold to the lower index.
// Two passes over chunks of a head: `select-count` finds the threshold from the histogram and counts each chunk,
// `select-write` places the chosen at their rank, and clears the histogram for the next time. Scratch a job, in words:
// histogram [H, BINS] | threshold and ties to keep [H, 2] | chunk counts above and at the threshold [H, 256, 2].
// Moves 2 bytes a key twice (the second time from cache) and writes 4 bytes a candidate.

fn scoreAt(word: u32, k: u32) -> i32 { return extractBits(bitcast<i32>(word), 16u * k, 16u); }
fn binOf(score: i32) -> u32 { return u32(score - LO) >> SHIFT; }

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

//! program select-count
var<workgroup> sums: array<u32, 256>;
var<workgroup> found: vec2<u32>;
var<workgroup> above: atomic<u32>;
var<workgroup> ties: atomic<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let block = blockOf(wid, job);
  let begin = block * job.chunk;
  if (begin >= job.count) { return; }
  let hist = job.at_scratch + h * BINS;
  // Thread 0 holds the highest bins; `sums` becomes the inclusive prefix from the top.
  const PER = (BINS + 255u) / 256u;
  var own = 0u;
  for (var k = 0u; k < PER; k++) {
    let i = lid * PER + k;
    if (i < BINS) { own += scratch[hist + BINS - 1u - i]; }
  }
  sums[lid] = own;
  workgroupBarrier();
  for (var s = 1u; s < 256u; s *= 2u) {
    var add = 0u;
    if (lid >= s) { add = sums[lid - s]; }
    workgroupBarrier();
    sums[lid] += add;
    workgroupBarrier();
  }
  let upto = sums[lid];
  if (upto >= job.candidates && upto - own < job.candidates) {
    var left = job.candidates - (upto - own);
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
  let end = min(begin + job.chunk, job.count);
  var mine = vec2<u32>(0u);
  for (var n = begin + 2u * lid; n < end; n += 512u) {
    let word = scores[job.at_scores + (h * job.stride + n) / 2u];
    for (var k = 0u; k < 2u; k++) {
      let bin = binOf(scoreAt(word, k));
      if (n + k < end) {
        mine.x += select(0u, 1u, bin > found.x);
        mine.y += select(0u, 1u, bin == found.x);
      }
    }
  }
  if (mine.x > 0u) { atomicAdd(&above, mine.x); }
  if (mine.y > 0u) { atomicAdd(&ties, mine.y); }
  workgroupBarrier();
  if (lid == 0u) {
    let at = job.at_scratch + job.blocks + 2u * (h * 256u + block);
    scratch[at] = atomicLoad(&above);
    scratch[at + 1u] = atomicLoad(&ties);
  }
}

//! program select-write
var<workgroup> sums: array<vec2<u32>, 256>;
var<workgroup> above: atomic<u32>;
var<workgroup> ties: atomic<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let block = blockOf(wid, job);
  let begin = block * job.chunk;
  if (begin >= job.count) { return; }
  let blocks = (job.count + job.chunk - 1u) / job.chunk;
  for (var i = block * 256u + lid; i < BINS; i += blocks * 256u) { scratch[job.at_scratch + h * BINS + i] = 0u; }
  if (lid < block) {
    let at = job.at_scratch + job.blocks + 2u * (h * 256u + lid);
    atomicAdd(&above, scratch[at]);
    atomicAdd(&ties, scratch[at + 1u]);
  }
  workgroupBarrier();
  let threshold = scratch[job.at_scratch + job.state + 2u * h];
  let keep = scratch[job.at_scratch + job.state + 2u * h + 1u];
  var base = vec2<u32>(atomicLoad(&above), atomicLoad(&ties));
  let end = min(begin + job.chunk, job.count);
  let row = job.at_scores + h * (job.stride / 2u);
  let out = job.at_ids + h * job.candidates;
  for (var tile = begin; tile < end; tile += 2048u) {
    let n = tile + 8u * lid;
    var words = array<u32, 4>();
    var mine = vec2<u32>(0u);
    for (var k = 0u; k < 8u; k++) {
      if (n + k < end) {
        if (k % 2u == 0u) { words[k / 2u] = scores[row + (n + k) / 2u]; }
        let bin = binOf(scoreAt(words[k / 2u], k % 2u));
        mine += vec2<u32>(select(0u, 1u, bin > threshold), select(0u, 1u, bin == threshold));
      }
    }
    sums[lid] = mine;
    workgroupBarrier();
    for (var s = 1u; s < 256u; s *= 2u) {
      var add = vec2<u32>(0u);
      if (lid >= s) { add = sums[lid - s]; }
      workgroupBarrier();
      sums[lid] += add;
      workgroupBarrier();
    }
    var at = base + sums[lid] - mine;
    base += sums[255];
    for (var k = 0u; k < 8u; k++) {
      if (n + k < end) {
        let bin = binOf(scoreAt(words[k / 2u], k % 2u));
        if (bin > threshold || (bin == threshold && at.y < keep)) { ids[out + at.x + min(at.y, keep)] = n + k; }
        at += vec2<u32>(select(0u, 1u, bin > threshold), select(0u, 1u, bin == threshold));
      }
    }
    workgroupBarrier();
  }
}
