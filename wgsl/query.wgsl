// query: queries [Hq, d] f32 -> chosen [H, Gc, d], y [H, Gc, D] butterflies, scales [H] = 2^e · unit, t [H, Gc, D] i8.
// One workgroup a head, one thread a coordinate; choosers one after the other. Sums in head order, t from f32 products:
// both equal to the bit. unit = 1 / (√D · G) for the sum, 1 / √D for each query by itself. Latency bound: a few KiB.
var<workgroup> ping: array<f32, D>;
var<workgroup> pong: array<f32, D>;
var<workgroup> levels: array<u32, D>;
var<workgroup> top: atomic<u32>;
var<workgroup> peak: atomic<u32>;

@compute @workgroup_size(D)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) j: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  for (var c = 0u; c < CHOOSERS; c++) {
    var v = 0.0;
    if (j < DIM) {
      let r = h * GROUP + select(c, 0u, CHOOSERS == 1u);
      v = queries[job.at_queries + r * DIM + j];
      if (CHOOSERS == 1u) {
        for (var g = 1u; g < GROUP; g++) { v += queries[job.at_queries + (r + g) * DIM + j]; }
      }
      chosen[job.at_chosen + (h * CHOOSERS + c) * DIM + j] = v;
    }
    atomicMax(&top, bitcast<u32>(v) & 0x7fffffffu);
  }
  workgroupBarrier();
  let biased = atomicLoad(&top) >> 23u;
  let flip = (signs[job.at_signs + j / 4u] << (24u - 8u * (j % 4u))) & 0x80000000u;
  for (var c = 0u; c < CHOOSERS; c++) {
    var bits = 0u;
    if (j < DIM) { bits = bitcast<u32>(chosen[job.at_chosen + (h * CHOOSERS + c) * DIM + j]); }
    ping[j] = bitcast<f32>(scaledBits(bits, biased, flip));
    workgroupBarrier();
    for (var s = 1u; s < D; s *= 4u) {
      pong[j] = select(ping[j] + ping[j ^ s], ping[j ^ s] - ping[j], (j & s) != 0u);
      workgroupBarrier();
      let g = s * 2u;
      if (g < D) { ping[j] = select(pong[j] + pong[j ^ g], pong[j ^ g] - pong[j], (j & g) != 0u); }
      else { ping[j] = pong[j]; }
      workgroupBarrier();
    }
    y[job.at_y + (h * CHOOSERS + c) * D + j] = ping[j];
    atomicMax(&peak, bitcast<u32>(ping[j]) & 0x7fffffffu);
    workgroupBarrier();
  }
  let m = bitcast<f32>(atomicLoad(&peak));
  if (j == 0u) {
    let e = exponent(biased);
    scales[job.at_scales + h] = job.unit * power(e / 2) * power(e - e / 2);
  }
  for (var c = 0u; c < CHOOSERS; c++) {
    let v = y[job.at_y + (h * CHOOSERS + c) * D + j];
    let a = 30.0 * abs(v);
    var level = 0;
    for (var i = 1; i < 30; i += 2) { level += select(0, 1, a > f32(i) * m); }
    levels[j] = bitcast<u32>(select(level, -level, v < 0.0)) & 255u;
    workgroupBarrier();
    if (j < D / 4u) {
      let i = 4u * j;
      t[job.at_t + (h * CHOOSERS + c) * (D / 4u) + j] =
        levels[i] | (levels[i + 1u] << 8u) | (levels[i + 2u] << 16u) | (levels[i + 3u] << 24u);
    }
    workgroupBarrier();
  }
}
