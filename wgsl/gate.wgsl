// gate: output = silu(gate) · up, one value a thread. IN_PLACE: the output holds the gate.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let i = blockOf(wid, job) * 256u + lid;
  if (i >= job.count) { return; }
  var x = 0.0;
  if (IN_PLACE == 1u) { x = output[job.at_output + i]; } else { x = gate[job.at_gate + i]; }
  output[job.at_output + i] = silu(x) * up[job.at_up + i];
}
