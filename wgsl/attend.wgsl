// attend: queries [Hq, d] f32 and positions (first range, ids, second range) of K and V rows -> partials [parts, Hq, d + 2].
// One workgroup takes one run of positions and up to GQ queries of one head, so that a row is read once for all of them.
// Tiles of 2 · SLOTS rows: 8 coordinates a thread, D/8 threads a row; dot products are added up in workgroup memory, V is
// accumulated in registers and added over the slots at the end, in slot order. Scores are in base 2 inside (scale · log2 e),
// the written maximum is natural. An empty part: 0, -Inf (bits given by the host), 0. Moves each K and V row once: 512 bytes
// a position and head at d 128 and 16 bits.
const LANES = D / 8u;
const SLOTS = WG / LANES;
const TILE = 2u * SLOTS;
const PITCH = LANES + 1u;
const LOW = -3.0e38;
const KU = select(1u, 2u, KEY_DTYPE == 0u);
const VU = select(1u, 2u, VALUE_DTYPE == 0u);
var<workgroup> part: array<vec4<f32>, TILE * PITCH>;
var<workgroup> scores: array<vec4<f32>, TILE>;

fn positionAt(i: u32, h: u32, job: Job) -> u32 {
  if (i < job.first) { return job.before + i; }
  if (i < job.first + job.k) { return job.base + ids[job.at_ids + h * job.k + i - job.first]; }
  return job.after + i - job.first - job.k;
}
struct Raw { lo: vec4<u32>, hi: vec4<u32> }
// What one thread reads of a tile: its coordinates of two K and two V rows.
struct Rows { k0: Raw, k1: Raw, v0: Raw, v1: Raw }
fn load(tile: u32, end: u32, slot: u32, h: u32, c: u32, job: Job) -> Rows {
  let none = Raw(vec4<u32>(0u), vec4<u32>(0u));
  if (tile >= end || c >= DIM / 8u) { return Rows(none, none, none, none); }
  let n0 = positionAt(min(tile + slot, end - 1u), h, job);
  let n1 = positionAt(min(tile + slot + SLOTS, end - 1u), h, job);
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
    part[slot * PITCH + c] = d0;
    part[(slot + SLOTS) * PITCH + c] = d1;
    workgroupBarrier();
    for (var row = lid; row < TILE; row += WG) {
      var sum = part[row * PITCH];
      for (var k = 1u; k < LANES; k++) { sum += part[row * PITCH + k]; }
      scores[row] = select(vec4<f32>(LOW), sum, tile + row < end);
    }
    workgroupBarrier();
    var top = m;
    for (var r = 0u; r < TILE; r++) { top = max(top, scores[r]); }
    let fade = exp2(m - top);
    m = top;
    let w0 = exp2(scores[slot] - top);
    let w1 = exp2(scores[slot + SLOTS] - top);
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
  workgroupBarrier();
  if (c == 0u) { scores[slot] = l; }
  for (var g = 0u; g < GQ; g++) {
    workgroupBarrier();
    var mine = a0;
    if (g == 1u) { mine = a1; } else if (g == 2u) { mine = a2; } else if (g == 3u) { mine = a3; }
    part[slot * LANES + c] = mine.a;
    part[WG + slot * LANES + c] = mine.b;
    workgroupBarrier();
    if (g0 + g < GROUP) {
      let out = job.at_partials + ((p * job.heads + h) * GROUP + g0 + g) * (DIM + 2u);
      for (var t = lid; t < DIM / 4u; t += WG) {
        var sum = vec4<f32>(0.0);
        for (var s = 0u; s < SLOTS; s++) { sum += part[(t % 2u) * WG + s * LANES + t / 2u]; }
        for (var k = 0u; k < 4u; k++) { partials[out + 4u * t + k] = bitcast<u32>(sum[k]); }
      }
      if (lid == 0u) {
        var sum = 0.0;
        for (var s = 0u; s < SLOTS; s++) { sum += scores[s][g]; }
        partials[out + DIM] = select(bitcast<u32>(m[g] * 0.6931471805599453), job.minusInf, begin >= end);
        partials[out + DIM + 1u] = bitcast<u32>(sum);
      }
    }
  }
}
