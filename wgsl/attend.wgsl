// attend: queries [Hq, d] f32 and positions (first range, ids, second range) of K and V rows -> partials [parts, Hq, d + 2].
// One workgroup takes one run of positions and up to GQ queries of one head, so that a row is read once for all of them.
// Tiles of 2 · SLOTS rows: 8 coordinates a thread, D/8 threads a row. A row's dot products with four queries are added up
// over its threads as one vector: by shuffles in a subgroup, where there are subgroups as wide as a row, else in workgroup
// memory (lane-sums.wgsl). Every slot keeps a maximum of its own over its rows; V is accumulated in registers and added over the slots at the end, in slot
// order. Scores are in base 2 inside (scale · log2 e), the written maximum is natural. An empty part: 0, -Inf (bits given
// by the host), 0. Moves each K and V row once: 512 bytes a position and head at d 128 and 16 bits.
const LANES = D / 8u;
const SLOTS = WG / LANES;
const TILE = 2u * SLOTS;
const LOW = -3.0e38;
const KU = select(1u, 2u, KEY_DTYPE == 0u);
const VU = select(1u, 2u, VALUE_DTYPE == 0u);
var<workgroup> part: array<vec4<f32>, 2u * WG>;
var<workgroup> ends: array<vec4<f32>, SLOTS>;

fn positionAt(i: u32, h: u32, job: Job) -> u32 {
  if (i < job.first) { return job.before + i; }
  if (i < job.first + job.k) { return job.base + ids[job.at_ids + h * job.k + i - job.first]; }
  return job.after + i - job.first - job.k;
}
fn inSegment(i: u32, h: u32, job: Job) -> bool {
  let n = positionAt(i, h, job);
  return n >= job.lo && n < job.hi;
}
// What the segments before left of a query, its maximum in base 2.
struct Earlier { top: f32, sum: f32 }
fn earlier(out: u32, job: Job) -> Earlier {
  let sum = bitcast<f32>(partials[out + DIM + 1u]);
  if (job.lo == 0u || sum == 0.0) { return Earlier(LOW, 0.0); }
  return Earlier(bitcast<f32>(partials[out + DIM]) * 1.4426950408889634, sum);
}
struct Raw { lo: vec4<u32>, hi: vec4<u32> }
// What one thread reads of a tile: its coordinates of two K and two V rows.
struct Rows { k0: Raw, k1: Raw, v0: Raw, v1: Raw }
fn load(tile: u32, end: u32, slot: u32, h: u32, c: u32, job: Job) -> Rows {
  let none = Raw(vec4<u32>(0u), vec4<u32>(0u));
  if (tile >= end || c >= DIM / 8u) { return Rows(none, none, none, none); }
  var n0 = positionAt(min(tile + slot, end - 1u), h, job);
  var n1 = positionAt(min(tile + slot + SLOTS, end - 1u), h, job);
  if (SEGMENT == 1u) {
    n0 = clamp(n0, job.lo, job.hi - 1u);
    n1 = clamp(n1, job.lo, job.hi - 1u);
  }
  return Rows(keyRaw(n0, h, c, job), keyRaw(n1, h, c, job), valueRaw(n0, h, c, job), valueRaw(n1, h, c, job));
}
fn keyRaw(n: u32, h: u32, c: u32, job: Job) -> Raw {
  let at = job.at_keys + ((h * job.keyCap + n) * (DIM / 8u) + c) * KU;
  let lo = keys[at];
  if (KEY_DTYPE == 0u) { return Raw(lo, keys[at + 1u]); }
  return Raw(lo, lo);
}
fn valueRaw(n: u32, h: u32, c: u32, job: Job) -> Raw {
  let at = job.at_values + ((h * job.valueCap + n) * (DIM / 8u) + c) * VU;
  let lo = values[at];
  if (VALUE_DTYPE == 0u) { return Raw(lo, values[at + 1u]); }
  return Raw(lo, lo);
}
fn query(g: u32, h: u32, c: u32, job: Job) -> EightF {
  if (g >= GROUP || c >= DIM / 8u) { return EightF(vec4<f32>(0.0), vec4<f32>(0.0)); }
  let at = job.at_queries + (h * GROUP + g) * (DIM / 4u) + 2u * c;
  let f = job.scale * 1.4426950408889634;
  return EightF(queries[at] * f, queries[at + 1u] * f);
}
fn inner(q: EightF, k: EightF) -> f32 { return dot(q.a, k.a) + dot(q.b, k.b); }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let block = blockOf(wid, job);
  if (block >= job.parts * CHUNKS) { return; }
  let p = block / CHUNKS;
  let g0 = block % CHUNKS * GQ;
  let c = lid % LANES;
  let slot = lid / LANES;
  let begin = min(job.total, p * job.run);
  let end = min(job.total, begin + job.run);
  let q0 = query(g0, h, c, job);
  let q1 = query(g0 + 1u, h, c, job);
  let q2 = query(g0 + 2u, h, c, job);
  let q3 = query(g0 + 3u, h, c, job);
  var m = vec4<f32>(LOW);
  var l = vec4<f32>(0.0);
  var a0 = EightF(vec4<f32>(0.0), vec4<f32>(0.0));
  var a1 = a0;
  var a2 = a0;
  var a3 = a0;
  // The next tile's rows are on their way while this one is worked on.
  var rows = load(begin, end, slot, h, c, job);
  for (var tile = begin; tile < end; tile += TILE) {
    let next = load(tile + TILE, end, slot, h, c, job);
    let x0 = widenF(KEY_DTYPE, rows.k0.lo, rows.k0.hi);
    let x1 = widenF(KEY_DTYPE, rows.k1.lo, rows.k1.hi);
    var d0 = vec4<f32>(inner(q0, x0), 0.0, 0.0, 0.0);
    var d1 = vec4<f32>(inner(q0, x1), 0.0, 0.0, 0.0);
    if (GQ > 1u) { d0.y = inner(q1, x0); d1.y = inner(q1, x1); }
    if (GQ > 2u) { d0.z = inner(q2, x0); d1.z = inner(q2, x1); d0.w = inner(q3, x0); d1.w = inner(q3, x1); }
    let sums = laneSums(d0, d1, slot, c);
    let s0 = sums.a;
    let s1 = sums.b;
    var have0 = tile + slot < end;
    var have1 = tile + slot + SLOTS < end;
    if (SEGMENT == 1u) {
      have0 = have0 && inSegment(tile + slot, h, job);
      have1 = have1 && inSegment(tile + slot + SLOTS, h, job);
    }
    let top = max(m, max(select(vec4<f32>(LOW), s0, have0), select(vec4<f32>(LOW), s1, have1)));
    let fade = exp2(m - top);
    m = top;
    let w0 = select(vec4<f32>(0.0), exp2(s0 - top), have0);
    let w1 = select(vec4<f32>(0.0), exp2(s1 - top), have1);
    l = l * fade + w0 + w1;
    let y0 = widenF(VALUE_DTYPE, rows.v0.lo, rows.v0.hi);
    let y1 = widenF(VALUE_DTYPE, rows.v1.lo, rows.v1.hi);
    a0 = EightF(a0.a * fade.x + w0.x * y0.a + w1.x * y1.a, a0.b * fade.x + w0.x * y0.b + w1.x * y1.b);
    if (GQ > 1u) { a1 = EightF(a1.a * fade.y + w0.y * y0.a + w1.y * y1.a, a1.b * fade.y + w0.y * y0.b + w1.y * y1.b); }
    if (GQ > 2u) {
      a2 = EightF(a2.a * fade.z + w0.z * y0.a + w1.z * y1.a, a2.b * fade.z + w0.z * y0.b + w1.z * y1.b);
      a3 = EightF(a3.a * fade.w + w0.w * y0.a + w1.w * y1.a, a3.b * fade.w + w0.w * y0.b + w1.w * y1.b);
    }
    rows = next;
  }
  if (c == 0u) { ends[slot] = m; }
  workgroupBarrier();
  var peak = ends[0];
  for (var s = 1u; s < SLOTS; s++) { peak = max(peak, ends[s]); }
  let share = exp2(m - peak);
  a0 = EightF(a0.a * share.x, a0.b * share.x);
  a1 = EightF(a1.a * share.y, a1.b * share.y);
  a2 = EightF(a2.a * share.z, a2.b * share.z);
  a3 = EightF(a3.a * share.w, a3.b * share.w);
  workgroupBarrier();
  if (c == 0u) { ends[slot] = l * share; }
  for (var g = 0u; g < GQ; g++) {
    workgroupBarrier();
    var mine = a0;
    if (g == 1u) { mine = a1; } else if (g == 2u) { mine = a2; } else if (g == 3u) { mine = a3; }
    part[(slot * LANES + c) * 2u] = mine.a;
    part[(slot * LANES + c) * 2u + 1u] = mine.b;
    workgroupBarrier();
    let out = job.at_partials + ((p * job.heads + h) * GROUP + min(g0 + g, GROUP - 1u)) * (DIM + 2u);
    var before = Earlier(LOW, 0.0);
    if (SEGMENT == 1u) {
      before = earlier(out, job);
      storageBarrier();
    }
    if (g0 + g < GROUP) {
      let top = max(peak[g], before.top);
      let kept = exp2(before.top - top);
      let added = exp2(peak[g] - top);
      for (var t = lid; t < DIM; t += WG) {
        var sum = 0.0;
        for (var s = 0u; s < SLOTS; s++) { sum += part[(s * D + t) / 4u][t % 4u]; }
        if (SEGMENT == 1u) {
          sum *= added;
          if (before.sum > 0.0) { sum += kept * bitcast<f32>(partials[out + t]); }
        }
        partials[out + t] = bitcast<u32>(sum);
      }
      if (lid == 0u) {
        var sum = 0.0;
        for (var s = 0u; s < SLOTS; s++) { sum += ends[s][g]; }
        if (SEGMENT == 1u) { sum = added * sum + kept * before.sum; }
        let none = select(begin >= end, sum == 0.0, SEGMENT == 1u);
        partials[out + DIM] = select(bitcast<u32>(select(peak[g], top, SEGMENT == 1u) * 0.6931471805599453), job.minusInf, none);
        partials[out + DIM + 1u] = bitcast<u32>(sum);
      }
    }
  }
}
