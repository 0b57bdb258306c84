// merge: partials [parts, Hq, d + 2] f32 -> output [Hq, d], lse [Hq], natural logarithm.
// One workgroup 32 coordinates of a query head, 8 slices of the parts, each in part order, then the slices in order. A part
// whose sum is 0 is empty and counts for nothing; nothing at all gives output 0 and lse -Inf (bits given by the host).
// Moves the partials once, and their last two words once more for every 32 coordinates.
var<workgroup> tree: array<f32, 256>;
var<workgroup> factors: array<f32, 256>;

fn state(at: u32, p: u32, pitch: u32, job: Job) -> vec2<f32> {
  if (p >= job.parts) { return vec2<f32>(-3.0e38, 0.0); }
  return vec2<f32>(partials[at + p * pitch + DIM], partials[at + p * pitch + DIM + 1u]);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let hq = headOf(wid, job);
  let j = blockOf(wid, job) * 32u + lid % 32u;
  let slice = lid / 32u;
  let pitch = job.heads * (DIM + 2u);
  let at = job.at_partials + hq * (DIM + 2u);
  var top = -3.0e38;
  for (var p = lid; p < job.parts; p += 256u) {
    let here = state(at, p, pitch, job);
    if (here.y > 0.0) { top = max(top, here.x); }
  }
  tree[lid] = top;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s /= 2u) {
    if (lid < s) { tree[lid] = max(tree[lid], tree[lid + s]); }
    workgroupBarrier();
  }
  let peak = tree[0];
  var sum = 0.0;
  var weight = 0.0;
  for (var first = 0u; first < job.parts; first += 256u) {
    let here = state(at, first + lid, pitch, job);
    let factor = select(0.0, exp(here.x - peak), here.y > 0.0);
    weight += factor * here.y;
    workgroupBarrier();
    factors[lid] = factor;
    workgroupBarrier();
    if (j < DIM) {
      let count = min(256u, job.parts - first);
      for (var k = slice; k < count; k += 8u) { sum += factors[k] * partials[at + (first + k) * pitch + j]; }
    }
  }
  workgroupBarrier();
  tree[lid] = weight;
  factors[lid] = sum;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s /= 2u) {
    if (lid < s) { tree[lid] += tree[lid + s]; }
    workgroupBarrier();
  }
  let total = tree[0];
  if (slice == 0u && j < DIM) {
    for (var s = 1u; s < 8u; s++) { sum += factors[32u * s + lid]; }
    output[job.at_output + hq * DIM + j] = select(0.0, sum / total, total > 0.0);
  }
  if (j == 0u && slice == 0u) { lse[job.at_lse + hq] = select(job.minusInf, bitcast<u32>(peak + log(total)), total > 0.0); }
}
