// rotate: x [R, d] f32 -> y [R, D] f32 butterflies of x · 2^-e, exponents [R] i32.
// One thread a coordinate, 256 / D rows a workgroup; d..D are zeros. Additions only, stages h = 1, 2, 4, … as the
// reference, so y is equal to the bit. Moves R · (d + D + 1) · 4 bytes.
const ROWS = 256u / D;
var<workgroup> ping: array<f32, 256>;
var<workgroup> pong: array<f32, 256>;
var<workgroup> tops: array<atomic<u32>, ROWS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let slot = lid / D;
  let j = lid % D;
  let row = blockOf(wid, job) * ROWS + slot;
  var bits = 0u;
  if (row < job.rows && j < DIM) { bits = bitcast<u32>(x[job.at_x + row * DIM + j]); }
  atomicMax(&tops[slot], bits & 0x7fffffffu);
  workgroupBarrier();
  let top = atomicLoad(&tops[slot]) >> 23u;
  let flip = (signs[job.at_signs + j / 4u] << (24u - 8u * (j % 4u))) & 0x80000000u;
  ping[lid] = bitcast<f32>(scaledBits(bits, top, flip));
  workgroupBarrier();
  for (var h = 1u; h < D; h *= 4u) {
    pong[lid] = select(ping[lid] + ping[lid ^ h], ping[lid ^ h] - ping[lid], (lid & h) != 0u);
    workgroupBarrier();
    let g = h * 2u;
    if (g < D) { ping[lid] = select(pong[lid] + pong[lid ^ g], pong[lid ^ g] - pong[lid], (lid & g) != 0u); }
    else { ping[lid] = pong[lid]; }
    workgroupBarrier();
  }
  if (row < job.rows) {
    y[job.at_y + row * D + j] = ping[lid];
    if (j == 0u) { exponents[job.at_exponents + row] = exponent(top); }
  }
}
