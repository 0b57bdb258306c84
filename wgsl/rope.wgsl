// rope: input [outer, inner, d] f32 -> output [inner, outer, d]; with TABLE, rows turned by the table's row of their token
// (d/2 cosines, then d/2 sines). One thread four pairs (j, j + d/2). Without a table bits are moved as they are.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let half = job.d / 8u;
  let i = blockOf(wid, job) * 256u + lid;
  if (i >= job.outer * job.inner * half) { return; }
  let row = i / half;
  let j = i % half;
  let o = row / job.inner;
  let n = row % job.inner;
  let src = job.at_input + row * 2u * half + j;
  var a = input[src];
  var b = input[src + half];
  if (TABLE == 1u) {
    let t = job.at_table + select(n, o, TOKENS_OUTER == 1u) * 2u * half + j;
    let cosine = table[t];
    let sine = table[t + half];
    let x = bitcast<vec4<f32>>(a);
    let y = bitcast<vec4<f32>>(b);
    a = bitcast<vec4<u32>>(x * cosine - y * sine);
    b = bitcast<vec4<u32>>(y * cosine + x * sine);
  }
  let dst = job.at_output + (n * job.outer + o) * 2u * half + j;
  output[dst] = a;
  output[dst + half] = b;
}
