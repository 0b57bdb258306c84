// rope: input [outer, inner, d] f32 -> output [inner, outer, d]; where the job says so, rows are RMS-normalized, then turned
// by the table's row of their token (d/2 cosines, then d/2 sines). LANES threads a row, each four pairs (j, j + d/2) at a
// time. A row that is neither keeps its bits.
const ROWS = 256u / LANES;
var<workgroup> part: array<f32, 256>;

fn valueAt(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>(input[i]); }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let rows = job.outer * job.inner;
  let row0 = blockOf(wid, job) * ROWS;
  if (row0 >= rows) { return; }
  let row = row0 + lid / LANES;
  let lane = lid % LANES;
  let half = job.d / 8u;
  let src = job.at_input + row * 2u * half;
  var factor = 1.0;
  if (job.normed == 1u) {
    var squares = 0.0;
    if (row < rows) {
      for (var j = lane; j < 2u * half; j += LANES) { squares += dot(valueAt(src + j), valueAt(src + j)); }
    }
    part[lid] = squares;
    workgroupBarrier();
    squares = 0.0;
    for (var k = 0u; k < LANES; k++) { squares += part[lid - lane + k]; }
    factor = 1.0 / sqrt(squares / f32(job.d) + job.epsilon);
  }
  if (row >= rows) { return; }
  let o = row / job.inner;
  let n = row % job.inner;
  let dst = job.at_output + (n * job.outer + o) * 2u * half;
  for (var j = lane; j < half; j += LANES) {
    var a = input[src + j];
    var b = input[src + half + j];
    if (job.normed == 1u) {
      a = bitcast<vec4<u32>>(bitcast<vec4<f32>>(a) * factor * norm[job.at_norm + j]);
      b = bitcast<vec4<u32>>(bitcast<vec4<f32>>(b) * factor * norm[job.at_norm + half + j]);
    }
    if (job.turned == 1u) {
      let t = job.at_table + select(n, o, job.tokens_outer == 1u) * 2u * half + j;
      let cosine = table[t];
      let sine = table[t + half];
      let x = bitcast<vec4<f32>>(a);
      let y = bitcast<vec4<f32>>(b);
      a = bitcast<vec4<u32>>(x * cosine - y * sine);
      b = bitcast<vec4<u32>>(y * cosine + x * sine);
    }
    output[dst + j] = a;
    output[dst + half + j] = b;
  }
}
