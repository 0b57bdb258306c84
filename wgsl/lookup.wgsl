// lookup: ids [T] and a table [V, n] of a dtype -> output [T, n] f32, on the bits: exact. One thread eight coordinates.
// A table wider than one binding comes as several dispatches, each for rows lo..hi - 1; the first one writes the zeros of
// ids beyond the table. Moves each row once.
const UNITS = select(1u, 2u, DTYPE == 0u);

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let eights = job.width / 8u;
  let i = blockOf(wid, job) * 256u + lid;
  if (i >= job.tokens * eights) { return; }
  let id = ids[job.at_ids + i / eights];
  var x = Eight(vec4<u32>(0u), vec4<u32>(0u));
  if (id < job.rows) {
    if (id < job.lo || id >= job.hi) { return; }
    let at = job.at_table + (id * eights + i % eights) * UNITS;
    let lo = table[at];
    var hi = lo;
    if (DTYPE == 0u) { hi = table[at + 1u]; }
    x = widen(DTYPE, lo, hi);
  } else if (job.lo > 0u) {
    return;
  }
  output[job.at_output + 2u * i] = x.a;
  output[job.at_output + 2u * i + 1u] = x.b;
}
