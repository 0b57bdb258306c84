// topk: values [H, C] f32 (ids [H, C] or 0..C-1) -> topIds, topValues [H, K], by value descending, ties to the lower id.
// One workgroup of WG threads a head: radix selection of the K-th on order-preserving u32 keys (-0 as 0), RADIX bits a pass,
// then, where equal values straddle the threshold, of the position; the K survivors are sorted bitonically on
// (value, position), which is unique, so that the order of their collection does not show. Above the sort's
// capacity they go to scratch and `topk-rank` places each by counting. Where K is at most a quarter of the threads (FEW),
// a shorter way comes first: hardly more than K values reach the K-th greatest of the threads' maxima; if at most 256 reach
// a bound close below it, counting who is greater places them. Reads the values once from memory, then from cache.
fn ordered(v: f32) -> u32 {
  let bits = select(bitcast<u32>(v), 0u, v == 0.0);
  return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
fn idAt(i: u32, h: u32, job: Job) -> u32 {
  if (job.listed == 1u) { return ids[job.at_ids + h * job.count + i]; }
  return i;
}

//! program topk
const BUCKETS = 1u << RADIX;
const PASSES = (32u + RADIX - 1u) / RADIX;
var<workgroup> buckets: array<atomic<u32>, BUCKETS>;
var<workgroup> sums: array<u32, WG>;
var<workgroup> survivors: array<vec2<u32>, SORT>;
// A bucket, what is still to be found in it, and how many it holds; or one number for all threads.
var<workgroup> found: vec3<u32>;
var<workgroup> taken: atomic<u32>;
var<workgroup> few: array<vec2<u32>, FEW>;
var<workgroup> ranks: array<atomic<u32>, FEW>;
var<workgroup> extremes: array<vec2<u32>, 32>;

// A lower bound on the K-th greatest of one key a thread (the first `count` have one), close below it: 256 equal steps
// between the least and the greatest are counted, and the step is taken that the K-th falls into.
fn bound(mine: u32, k: u32, count: u32, lid: u32) -> u32 {
  sums[lid] = mine;
  for (var i = lid; i < 256u; i += WG) { atomicStore(&buckets[i], 0u); }
  workgroupBarrier();
  if (lid < 32u) {
    var ends = vec2<u32>(0xffffffffu, 0u);
    for (var i = lid; i < min(WG, count); i += 32u) { ends = vec2<u32>(min(ends.x, sums[i]), max(ends.y, sums[i])); }
    extremes[lid] = ends;
  }
  workgroupBarrier();
  var lo = 0xffffffffu;
  var hi = 0u;
  for (var i = 0u; i < 32u; i++) {
    lo = min(lo, extremes[i].x);
    hi = max(hi, extremes[i].y);
  }
  let shift = u32(max(0, 24 - i32(countLeadingZeros(hi - lo))));
  if (lid < count) { atomicAdd(&buckets[(mine - lo) >> shift], 1u); }
  workgroupBarrier();
  var own = 0u;
  if (lid < 16u) {
    for (var i = 0u; i < 16u; i++) { own += atomicLoad(&buckets[255u - 16u * lid - i]); }
    sums[lid] = own;
  }
  workgroupBarrier();
  if (lid < 16u) {
    var before = 0u;
    for (var i = 0u; i < lid; i++) { before += sums[i]; }
    if (before < k && before + own >= k) {
      var need = k - before;
      var bucket = 255u - 16u * lid;
      loop {
        let here = atomicLoad(&buckets[bucket]);
        if (here >= need) { break; }
        need -= here;
        bucket--;
      }
      found = vec3<u32>(bucket, 0u, 0u);
    }
  }
  return lo + (workgroupUniformLoad(&found).x << shift);
}

// Eight keys, WG apart, whose loads do not wait for each other; 0 beyond the end.
const AHEAD = 8u;
fn fetch(row: u32, i: u32, job: Job) -> array<u32, AHEAD> {
  let end = job.count - 1u;
  let a = vec4<f32>(values[row + i], values[row + min(end, i + WG)], values[row + min(end, i + 2u * WG)],
    values[row + min(end, i + 3u * WG)]);
  let b = vec4<f32>(values[row + min(end, i + 4u * WG)], values[row + min(end, i + 5u * WG)],
    values[row + min(end, i + 6u * WG)], values[row + min(end, i + 7u * WG)]);
  var o = array<u32, AHEAD>(ordered(a.x), ordered(a.y), ordered(a.z), ordered(a.w), ordered(b.x), ordered(b.y), ordered(b.z),
    ordered(b.w));
  for (var k = 1u; k < AHEAD; k++) { o[k] = select(0u, o[k], i + k * WG <= end); }
  return o;
}

// The short way; false where it does not apply.
fn chooseFew(row: u32, h: u32, job: Job, lid: u32) -> bool {
  var most = 0u;
  for (var i = lid; i < job.count; i += AHEAD * WG) {
    let o = fetch(row, i, job);
    for (var k = 0u; k < AHEAD; k++) { most = max(most, o[k]); }
  }
  let least = bound(most, job.k, job.count, lid);
  for (var i = lid; i < FEW; i += WG) { atomicStore(&ranks[i], 0u); }
  for (var i = lid; i < job.count; i += AHEAD * WG) {
    let o = fetch(row, i, job);
    for (var k = 0u; k < AHEAD; k++) {
      if (o[k] >= least && i + k * WG < job.count) {
        let at = atomicAdd(&taken, 1u);
        if (at < FEW) { few[at] = vec2<u32>(o[k], i + k * WG); }
      }
    }
  }
  workgroupBarrier();
  if (lid == 0u) { found = vec3<u32>(atomicLoad(&taken), 0u, 0u); }
  let n = workgroupUniformLoad(&found).x;
  if (n > FEW) {
    if (lid == 0u) { atomicStore(&taken, 0u); }
    workgroupBarrier();
    return false;
  }
  const SHARE = WG / FEW;
  let mine = few[lid % FEW];
  if (lid % FEW < n) {
    var greater = 0u;
    for (var i = lid / FEW; i < n; i += max(1u, SHARE)) {
      let other = few[i];
      greater += select(0u, 1u, other.x > mine.x || (other.x == mine.x && other.y < mine.y));
    }
    atomicAdd(&ranks[lid % FEW], greater);
  }
  workgroupBarrier();
  if (lid < n) {
    let rank = atomicLoad(&ranks[lid]);
    if (rank < job.k) {
      topIds[job.at_topIds + h * job.k + rank] = idAt(mine.y, h, job);
      topValues[job.at_topValues + h * job.k + rank] = values[row + mine.y];
    }
  }
  return true;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let row = job.at_values + h * job.count;
  if (FEW > 1u) {
    if (chooseFew(row, h, job, lid)) { return; }
  }
  // Levels below PASSES look at values, the others at ~position; `prefix` holds the digits found so far.
  var prefix = 0u;
  var value = 0u;
  var left = job.k;
  var hit = vec3<u32>(0u);
  for (var level = 0u; level < 2u * PASSES; level++) {
    let second = level >= PASSES;
    let turn = level % PASSES;
    if (level == PASSES) {
      value = prefix;
      prefix = 0u;
      if (hit.z == left) { break; }
    }
    let low = max(i32(32u - RADIX * (turn + 1u)), 0);
    let width = 32u - RADIX * turn - u32(low);
    for (var i = lid; i < BUCKETS; i += WG) { atomicStore(&buckets[i], 0u); }
    workgroupBarrier();
    for (var i = lid; i < job.count; i += WG) {
      let o = ordered(values[row + i]);
      let key = select(o, ~i, second);
      let high = u32(low) + width;
      let fits = high >= 32u || (key >> (high % 32u)) == (prefix >> (high % 32u));
      if (fits && (!second || o == value)) { atomicAdd(&buckets[extractBits(key, u32(low), width)], 1u); }
    }
    workgroupBarrier();
    const PER = (BUCKETS + WG - 1u) / WG;
    var own = 0u;
    for (var k = 0u; k < PER; k++) {
      let i = lid * PER + k;
      if (i < BUCKETS) { own += atomicLoad(&buckets[BUCKETS - 1u - i]); }
    }
    sums[lid] = own;
    workgroupBarrier();
    for (var s = 1u; s < WG; s *= 2u) {
      var add = 0u;
      if (lid >= s) { add = sums[lid - s]; }
      workgroupBarrier();
      sums[lid] += add;
      workgroupBarrier();
    }
    let upto = sums[lid];
    if (upto >= left && upto - own < left) {
      var need = left - (upto - own);
      var i = lid * PER;
      loop {
        let here = atomicLoad(&buckets[BUCKETS - 1u - i]);
        if (here >= need) {
          found = vec3<u32>(BUCKETS - 1u - i, need, here);
          break;
        }
        need -= here;
        i++;
      }
    }
    hit = workgroupUniformLoad(&found);
    prefix |= hit.x << u32(low);
    left = hit.y;
  }
  // Not narrowed by position: every key equal to the threshold is kept.
  let least = prefix;
  for (var i = lid; i < SORT; i += WG) { survivors[i] = vec2<u32>(0u, 0xffffffffu); }
  workgroupBarrier();
  for (var i = lid; i < job.count; i += WG) {
    let o = ordered(values[row + i]);
    if (o > value || (o == value && ~i >= least)) {
      let at = atomicAdd(&taken, 1u);
      if (SORT > 1u) { survivors[at] = vec2<u32>(o, i); }
      else { spill[job.at_spill + h * job.k + at] = vec2<u32>(o, i); }
    }
  }
  if (SORT > 1u) {
    workgroupBarrier();
    for (var size = 2u; size <= SORT; size *= 2u) {
      for (var step = size / 2u; step > 0u; step /= 2u) {
        for (var i = lid; i < SORT / 2u; i += WG) {
          let a = 2u * i - (i & (step - 1u));
          let p = survivors[a];
          let q = survivors[a + step];
          let first = p.x > q.x || (p.x == q.x && p.y < q.y);
          if (first != ((a & size) == 0u)) {
            survivors[a] = q;
            survivors[a + step] = p;
          }
        }
        workgroupBarrier();
      }
    }
    for (var i = lid; i < job.k; i += WG) {
      let at = survivors[i].y;
      topIds[job.at_topIds + h * job.k + i] = idAt(at, h, job);
      topValues[job.at_topValues + h * job.k + i] = values[row + at];
    }
  }
}

//! program topk-rank
var<workgroup> tile: array<vec2<u32>, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let i = blockOf(wid, job) * 256u + lid;
  let row = job.at_spill + h * job.k;
  let mine = spill[row + min(i, job.k - 1u)];
  var rank = 0u;
  for (var t = 0u; t < job.k; t += 256u) {
    workgroupBarrier();
    tile[lid] = vec2<u32>(0u, 0xffffffffu);
    if (t + lid < job.k) { tile[lid] = spill[row + t + lid]; }
    workgroupBarrier();
    for (var k = 0u; k < 256u; k++) {
      let q = tile[k];
      rank += select(0u, 1u, q.x > mine.x || (q.x == mine.x && q.y < mine.y));
    }
  }
  if (i < job.k) {
    topIds[job.at_topIds + h * job.k + rank] = idAt(mine.y, h, job);
    topValues[job.at_topValues + h * job.k + rank] = values[job.at_values + h * job.count + mine.y];
  }
}
