// gate: output = silu(gate) · up, one value a thread; silu(x) = x / (1 + e^-x) from e^-|x|, which never overflows.
// IN_PLACE: the output holds the gate.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let i = blockOf(wid, job) * 256u + lid;
  if (i >= job.count) { return; }
  var x = 0.0;
  if (IN_PLACE == 1u) { x = output[job.at_output + i]; } else { x = gate[job.at_gate + i]; }
  let e = exp(-abs(x));
  output[job.at_output + i] = x * (select(1.0, e, x < 0.0) / (1.0 + e)) * up[job.at_up + i];
}
