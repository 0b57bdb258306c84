// norm: input [R, n] f32 -> output x / sqrt(mean(x²) + ε) · weight. LANES threads a row, 256 / LANES rows a workgroup, so
// that short rows (the norms of queries and keys) fill it. Squares are added up a thread, then pairwise over the lanes.
// IN_PLACE: the output holds the input; each thread writes only what it alone reads. Reads every value twice, the
// second time from a cache.
const ROWS = 256u / LANES;
var<workgroup> part: array<f32, 256>;

fn valueAt(i: u32, job: Job) -> vec4<f32> {
  if (IN_PLACE == 1u) { return output[job.at_output + i]; }
  return input[job.at_input + i];
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let row0 = blockOf(wid, job) * ROWS;
  if (row0 >= job.rows) { return; }
  let row = row0 + lid / LANES;
  let lane = lid % LANES;
  let quads = job.width / 4u;
  let base = row * quads;
  var sum = 0.0;
  if (row < job.rows) {
    for (var c = lane; c < quads; c += LANES) {
      let x = valueAt(base + c, job);
      sum += dot(x, x);
    }
  }
  part[lid] = sum;
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    if (lane < half) { part[lid] += part[lid + half]; }
    workgroupBarrier();
  }
  if (row >= job.rows) { return; }
  let scale = 1.0 / sqrt(part[lid - lane] / f32(job.width) + job.epsilon);
  for (var c = lane; c < quads; c += LANES) {
    output[job.at_output + base + c] = valueAt(base + c, job) * scale * weight[job.at_weight + c];
  }
}
