// dense: causal attention of queries [Hq, T, d] at positions first.. over K and V rows -> output [Hq, T, d], lse [Hq, T].
// A workgroup takes 64 (token, query of the group) rows of one head against tiles of 32 keys: 4 x 2 scores a thread from
// 16-coordinate slices in workgroup memory, then 4 rows x 8 (or 16) coordinates of output a thread. Running maximum and sum
// a row, base 2 inside, natural log outside. Arithmetic bound: 4 · d operations a query and visible position.
const COLS = (D + 127u) / 128u;
const LOW = -3.0e38;
const VU = select(1u, 2u, VALUE_DTYPE == 0u);
var<workgroup> qs: array<f32, 1088>;
var<workgroup> ks: array<f32, 544>;
var<workgroup> ps: array<f32, 2112>;
var<workgroup> stat: array<f32, 256>;

fn keyPair(n: u32, h: u32, pair: u32, job: Job) -> vec2<f32> {
  let e = (h * job.keyCap + n) * (DIM / 2u) + pair;
  if (KEY_DTYPE == 0u) { return bitcast<vec2<f32>>(vec2<u32>(keys[job.at_keys + 2u * e], keys[job.at_keys + 2u * e + 1u])); }
  let word = keys[job.at_keys + e];
  if (KEY_DTYPE == 1u) { return unpack2x16float(word); }
  return bitcast<vec2<f32>>(brainPair(word));
}

fn both(a: f32, b: f32) -> f32 {
  let top = max(a, b);
  return top + log(exp(a - top) + exp(b - top));
}
// What this segment, whose own lse is `now`, and those before weigh in a row; it sees nothing of a segment beyond its token.
fn shares(now: f32, row: u32, h: u32, job: Job) -> vec2<f32> {
  if (job.lo == 0u) { return vec2<f32>(1.0, 0.0); }
  if (job.first + row / GROUP < job.lo) { return vec2<f32>(0.0, 1.0); }
  let before = lse[job.at_lse + (h * GROUP + row % GROUP) * job.tokens + row / GROUP];
  let all = both(before, now);
  return vec2<f32>(exp(now - all), exp(before - all));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let rows = job.tokens * GROUP;
  let row0 = blockOf(wid, job) * 64u;
  if (row0 >= rows) { return; }
  let tx = lid % 16u;
  let ty = lid / 16u;
  var begin = 0u;
  var visible = job.first + min(row0 + 63u, rows - 1u) / GROUP + 1u;
  if (SEGMENT == 1u) {
    begin = job.lo;
    visible = min(visible, job.hi);
    if (begin >= visible) { return; }
  }
  let mine = min(row0 + lid / 4u, rows - 1u);
  let q_row = job.at_queries + ((h * GROUP + mine % GROUP) * job.tokens + mine / GROUP) * (DIM / 4u);
  let reach = job.first + mine / GROUP;
  var m = LOW;
  var l = 0.0;
  var acc = array<vec4<f32>, 8u * COLS>();
  for (var n0 = begin; n0 < visible; n0 += 32u) {
    var s = array<f32, 8>();
    for (var j0 = 0u; j0 < DIM; j0 += 16u) {
      let j = j0 + 4u * (lid % 4u);
      var q = vec4<f32>(0.0);
      if (j < DIM) { q = queries[q_row + j / 4u]; }
      let at = lid / 4u * 17u + 4u * (lid % 4u);
      qs[at] = q.x;
      qs[at + 1u] = q.y;
      qs[at + 2u] = q.z;
      qs[at + 3u] = q.w;
      let pair = j0 / 2u + lid % 8u;
      var k = vec2<f32>(0.0);
      if (pair < DIM / 2u) { k = keyPair(min(n0 + lid / 8u, visible - 1u), h, pair, job); }
      ks[lid / 8u * 17u + 2u * (lid % 8u)] = k.x;
      ks[lid / 8u * 17u + 2u * (lid % 8u) + 1u] = k.y;
      workgroupBarrier();
      for (var i = 0u; i < 16u; i++) {
        let ka = ks[tx * 17u + i];
        let kb = ks[(tx + 16u) * 17u + i];
        for (var r = 0u; r < 4u; r++) {
          let x = qs[(ty * 4u + r) * 17u + i];
          s[r] += x * ka;
          s[r + 4u] += x * kb;
        }
      }
      workgroupBarrier();
    }
    for (var r = 0u; r < 4u; r++) {
      ps[(ty * 4u + r) * 33u + tx] = s[r];
      ps[(ty * 4u + r) * 33u + tx + 16u] = s[r + 4u];
    }
    workgroupBarrier();
    // Four threads a row, eight scores each.
    let own = lid / 4u * 33u + 8u * (lid % 4u);
    var top = m;
    for (var k = 0u; k < 8u; k++) {
      let n = n0 + 8u * (lid % 4u) + k;
      let score = select(LOW, ps[own + k] * job.scale * 1.4426950408889634, n <= reach && (SEGMENT == 0u || n < job.hi));
      ps[own + k] = score;
      top = max(top, score);
    }
    stat[lid] = top;
    workgroupBarrier();
    let quad = lid & 0xfcu;
    top = max(max(stat[quad], stat[quad + 1u]), max(stat[quad + 2u], stat[quad + 3u]));
    let fade = exp2(m - top);
    m = top;
    l *= fade;
    for (var k = 0u; k < 8u; k++) {
      let w = exp2(ps[own + k] - top);
      ps[own + k] = w;
      l += w;
    }
    if (lid % 4u == 0u) { ps[lid / 4u * 33u + 32u] = fade; }
    workgroupBarrier();
    for (var r = 0u; r < 4u; r++) {
      let f = ps[(ty * 4u + r) * 33u + 32u];
      for (var k = 0u; k < 2u * COLS; k++) { acc[r * 2u * COLS + k] *= f; }
    }
    for (var n = 0u; n < min(32u, visible - n0); n++) {
      for (var col = 0u; col < COLS; col++) {
        let c = tx + 16u * col;
        if (c < DIM / 8u) {
          let at = job.at_values + ((h * job.valueCap + n0 + n) * (DIM / 8u) + c) * VU;
          let lo = values[at];
          var hi = lo;
          if (VALUE_DTYPE == 0u) { hi = values[at + 1u]; }
          let v = widenF(VALUE_DTYPE, lo, hi);
          for (var r = 0u; r < 4u; r++) {
            let w = ps[(ty * 4u + r) * 33u + n];
            acc[(r * COLS + col) * 2u] += w * v.a;
            acc[(r * COLS + col) * 2u + 1u] += w * v.b;
          }
        }
      }
    }
    workgroupBarrier();
  }
  stat[lid] = l;
  if (SEGMENT == 1u && lid % 4u == 0u) { ps[lid / 4u * 33u + 32u] = m; }
  workgroupBarrier();
  for (var r = 0u; r < 4u; r++) {
    let local = ty * 4u + r;
    let row = row0 + local;
    if (row < rows) {
      let sum = ((stat[4u * local] + stat[4u * local + 1u]) + stat[4u * local + 2u]) + stat[4u * local + 3u];
      let out = job.at_output + ((h * GROUP + row % GROUP) * job.tokens + row / GROUP) * (DIM / 4u);
      var share = vec2<f32>(1.0, 0.0);
      if (SEGMENT == 1u) { share = shares(ps[local * 33u + 32u] * 0.6931471805599453 + log(sum), row, h, job); }
      for (var col = 0u; col < COLS; col++) {
        let c = tx + 16u * col;
        if (c < DIM / 8u) {
          var a = acc[(r * COLS + col) * 2u] / sum;
          var b = acc[(r * COLS + col) * 2u + 1u] / sum;
          if (SEGMENT == 1u) {
            a *= share.x;
            b *= share.x;
            if (share.y > 0.0) {
              a += share.y * output[out + 2u * c];
              b += share.y * output[out + 2u * c + 1u];
            }
          }
          output[out + 2u * c] = a;
          output[out + 2u * c + 1u] = b;
        }
      }
    }
  }
  if (SEGMENT == 1u) { storageBarrier(); }
  let row = row0 + lid / 4u;
  if (lid % 4u == 0u && row < rows) {
    let sum = ((stat[lid] + stat[lid + 1u]) + stat[lid + 2u]) + stat[lid + 3u];
    let at = job.at_lse + (h * GROUP + row % GROUP) * job.tokens + row / GROUP;
    let now = m * 0.6931471805599453 + log(sum);
    if (SEGMENT == 0u || job.lo == 0u) { lse[at] = now; }
    else if (job.first + row / GROUP >= job.lo) { lse[at] = both(lse[at], now); }
  }
}
