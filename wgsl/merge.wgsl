// merge: partials [parts, Hq, d + 2] f32 -> output [Hq, d], lse [Hq], natural logarithm.
// One workgroup a query head, 256 / D slices of the parts, each in part order, then the slices in order. A part whose sum
// is 0 is empty and not looked at; nothing at all gives output 0 and lse -Inf (bits given by the host).
const SLICES = 256u / D;
var<workgroup> tops: array<f32, 256>;
var<workgroup> factors: array<f32, 256>;
var<workgroup> rows: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let hq = headOf(wid, job);
  let pitch = job.heads * (DIM + 2u);
  let at = job.at_partials + hq * (DIM + 2u);
  var top = -3.0e38;
  for (var p = lid; p < job.parts; p += 256u) {
    if (partials[at + p * pitch + DIM + 1u] > 0.0) { top = max(top, partials[at + p * pitch + DIM]); }
  }
  tops[lid] = top;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s /= 2u) {
    if (lid < s) { tops[lid] = max(tops[lid], tops[lid + s]); }
    workgroupBarrier();
  }
  let peak = tops[0];
  let j = lid % D;
  let slice = lid / D;
  var sum = 0.0;
  var total = 0.0;
  for (var first = 0u; first < job.parts; first += 256u) {
    workgroupBarrier();
    let p = first + lid;
    var factor = 0.0;
    var weight = 0.0;
    if (p < job.parts) {
      weight = partials[at + p * pitch + DIM + 1u];
      if (weight > 0.0) { factor = exp(partials[at + p * pitch + DIM] - peak); }
    }
    factors[lid] = factor;
    rows[lid] = factor * weight;
    workgroupBarrier();
    let count = min(256u, job.parts - first);
    if (j < DIM) {
      for (var k = slice; k < count; k += SLICES) { sum += factors[k] * partials[at + (first + k) * pitch + j]; }
    }
    for (var k = 0u; k < count; k++) { total += rows[k]; }
  }
  workgroupBarrier();
  factors[lid] = sum;
  workgroupBarrier();
  if (slice == 0u && j < DIM) {
    for (var s = 1u; s < SLICES; s++) { sum += factors[s * D + j]; }
    output[job.at_output + hq * DIM + j] = select(0.0, sum / total, total > 0.0);
  }
  if (lid == 0u) { lse[job.at_lse + hq] = select(job.minusInf, bitcast<u32>(peak + log(total)), total > 0.0); }
}
