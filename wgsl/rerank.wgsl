// rerank: candidates [H, C] (or the keys 0..C-1) -> estimates [H, C] f32, the maximum over choosers.
// `rerank-codes`: RSQ-IP from the summary. A workgroup takes RUN · 256 / W candidates of a head, W = ⌈D/32⌉ threads each
// one word of every plane; level · y comes from a table in workgroup memory, [D, 8], shared by all. Partial sums are added
// in word order. Moves about 82 bytes a candidate (D 128), in sectors of 32.
// `rerank-rows`: the exact product with the stored keys, 16 threads a row.

//! program rerank-codes
const B = D / 8u;
const W = (D + 31u) / 32u;
const KEYS = 256u / W;
const RUN = 4u;
const LEVELS = array<f32, 8>(0.04250866710528162, 0.1280436505971762, 0.2152012184876915, 0.30532382043588224,
  0.4002712711400757, 0.5030220634852353, 0.6193476458928237, 0.7648350836701993);
var<workgroup> table: array<f32, D * 8u>;
var<workgroup> parts: array<f32, RUN * 256u>;

fn candidate(i: u32, h: u32, job: Job) -> u32 {
  if (job.listed == 1u) { return ids[job.at_ids + h * job.count + i]; }
  return i;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let first = blockOf(wid, job) * KEYS * RUN;
  if (first >= job.count) { return; }
  let w = lid % W;
  for (var c = 0u; c < CHOOSERS; c++) {
    workgroupBarrier();
    for (var i = lid; i < D * 8u; i += 256u) {
      table[i] = y[job.at_y + (h * CHOOSERS + c) * D + i / 8u] * LEVELS[i % 8u];
    }
    workgroupBarrier();
    for (var k = 0u; k < RUN; k++) {
      let i = first + k * KEYS + lid / W;
      var sum = 0.0;
      if (i < job.count) {
        let key = h * job.zone + candidate(i, h, job);
        let s = planes[job.at_planes + key * W + w];
        let at = job.at_magnitudes + key * 3u * W + w;
        let p0 = magnitudes[at];
        let p1 = magnitudes[at + W];
        let p2 = magnitudes[at + 2u * W];
        let u8s = weights[job.at_weights + key * W + w];
        for (var b = 0u; b < min(4u, B); b++) {
          var dot = 0.0;
          for (var j = 0u; j < 8u; j++) {
            let bit = 8u * b + j;
            let index = extractBits(p0, bit, 1u) | (extractBits(p1, bit, 1u) << 1u) | (extractBits(p2, bit, 1u) << 2u);
            let v = bitcast<u32>(table[(w * 32u + bit) * 8u + index]);
            dot += bitcast<f32>(v ^ ((~s << (31u - bit)) & 0x80000000u));
          }
          sum += f32((u8s >> (8u * b)) & 255u) * dot;
        }
      }
      parts[k * 256u + lid] = sum;
    }
    workgroupBarrier();
    for (var o = lid; o < KEYS * RUN; o += 256u) {
      let i = first + o;
      if (i < job.count) {
        var sum = parts[o * W];
        for (var q = 1u; q < W; q++) { sum += parts[o * W + q]; }
        let key = h * job.zone + candidate(i, h, job);
        let half = (scales[job.at_scales + key / 2u] >> (16u * (key % 2u))) & 0xffffu;
        var value = sum * bitcast<f32>(half << 16u) * qscales[job.at_qscales + h];
        let out = job.at_estimates + h * job.count + i;
        if (c > 0u) { value = max(value, estimates[out]); }
        estimates[out] = value;
      }
    }
  }
}

//! program rerank-rows
var<workgroup> parts: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let i = blockOf(wid, job) * 16u + lid / 16u;
  let lane = lid % 16u;
  var n = 0u;
  if (i < job.count) {
    n = i;
    if (job.listed == 1u) { n = ids[job.at_ids + h * job.count + i]; }
  }
  const UNIT = select(1u, 2u, DTYPE == 0u);
  let row = job.at_keys + (h * job.cap + job.base + n) * (DIM / 8u) * UNIT;
  var best = 0.0;
  for (var c = 0u; c < CHOOSERS; c++) {
    var sum = 0.0;
    if (i < job.count) {
      let q = job.at_chosen + (h * CHOOSERS + c) * (DIM / 4u);
      for (var k = lane; k < DIM / 8u; k += 16u) {
        let lo = keys[row + k * UNIT];
        var hi = lo;
        if (DTYPE == 0u) { hi = keys[row + k * UNIT + 1u]; }
        let v = widen(DTYPE, lo, hi);
        sum += dot(bitcast<vec4<f32>>(v.a), chosen[q + 2u * k]) + dot(bitcast<vec4<f32>>(v.b), chosen[q + 2u * k + 1u]);
      }
    }
    parts[lid] = sum;
    workgroupBarrier();
    if (lane == 0u) {
      for (var k = 1u; k < 16u; k++) { sum += parts[lid + k]; }
      best = select(max(best, sum * job.scale), sum * job.scale, c == 0u);
    }
    workgroupBarrier();
  }
  if (lane == 0u && i < job.count) { estimates[job.at_estimates + h * job.count + i] = best; }
}
