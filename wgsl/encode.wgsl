// encode: keys [H, cap, d] -> planes, weights, scales of the summary (align 4: S = ⌈B/4⌉ words a plane and key).
// One thread a subspace, 256 / B keys a workgroup. The first three butterfly stages run in registers, the others through
// workgroup memory, in the reference's order: sign bits are equal to the bit. Lengths, levels and weights in f32.
// Workgroups cover key indices aligned to 4, so a word shared by neighbouring keys has one writer; outside [at, at + count)
// the old half is kept. Moves a key's row once and writes 82 bytes at D 128.
const T = array<f32, 7>(0.08527615885122891, 0.17162243454243387, 0.26026251946178686, 0.35279754578797895,
  0.45164666731265546, 0.5611848546890295, 0.6920913647815115);

fn rowUnit(n: u32, h: u32, job: Job, c: u32) -> u32 {
  return job.at_keys + ((h * job.cap + n) * (DIM / 8u) + c) * select(1u, 2u, DTYPE == 0u);
}
fn loadEight(n: u32, h: u32, job: Job, c: u32) -> Eight {
  let at = rowUnit(n, h, job, c);
  let lo = keys[at];
  var hi = lo;
  if (DTYPE == 0u) { hi = keys[at + 1u]; }
  return widen(DTYPE, lo, hi);
}
fn largest(v: vec4<u32>) -> u32 {
  let w = v & vec4<u32>(0x7fffffffu);
  return max(max(w.x, w.y), max(w.z, w.w));
}

// Length of a key over 2^e, with the coordinates that the rotation drops counted as 0.
struct Norm { size: f32, e: i32 }
fn keyNorm(n: u32, h: u32, job: Job) -> Norm {
  var top = 0u;
  for (var c = 0u; c < DIM / 8u; c++) {
    let v = loadEight(n, h, job, c);
    top = max(top, max(largest(v.a), largest(v.b)));
  }
  top = top >> 23u;
  var sum = 0.0;
  for (var c = 0u; c < DIM / 8u; c++) {
    let v = loadEight(n, h, job, c);
    let a = scaled4(v.a, top, 0u);
    let b = scaled4(v.b, top, 0u);
    sum += dot(a, a) + dot(b, b);
  }
  return Norm(sqrt(sum), exponent(top));
}

//! program encode
const B = D / 8u;
const KEYS = 256u / B;
const S = (B + 3u) / 4u;
var<workgroup> even: array<vec4<f32>, 256>;
var<workgroup> odd: array<vec4<f32>, 256>;
var<workgroup> tops: array<u32, 256>;
var<workgroup> codes: array<u32, 256>;
var<workgroup> parts: array<f32, 256>;
var<workgroup> bytes: array<u32, 256>;
var<workgroup> halves: array<u32, KEYS>;

fn pick(i: vec4<u32>) -> vec4<f32> {
  let b0 = (i & vec4<u32>(1u)) != vec4<u32>(0u);
  let b1 = (i & vec4<u32>(2u)) != vec4<u32>(0u);
  let low = select(select(vec4<f32>(0.04250866710528162), vec4<f32>(0.1280436505971762), b0),
    select(vec4<f32>(0.2152012184876915), vec4<f32>(0.30532382043588224), b0), b1);
  let high = select(select(vec4<f32>(0.4002712711400757), vec4<f32>(0.5030220634852353), b0),
    select(vec4<f32>(0.6193476458928237), vec4<f32>(0.7648350836701993), b0), b1);
  return select(low, high, i >= vec4<u32>(4u));
}
fn nibble(v: vec4<u32>) -> u32 { return v.x | (v.y << 1u) | (v.z << 2u) | (v.w << 3u); }
fn gather(i: u32, shift: u32) -> u32 {
  var word = 0u;
  let first = i / S * B + i % S * 4u;
  for (var k = 0u; k < min(4u, B); k++) { word |= ((codes[first + k] >> shift) & 255u) << (8u * k); }
  return word;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let slot = lid / B;
  let b = lid % B;
  let base = slot * B;
  let first = (job.at & 0xfffffffcu) + blockOf(wid, job) * KEYS;
  let n = first + slot;
  let valid = n >= job.at && n < job.at + job.count;
  var raw = Eight(vec4<u32>(0u), vec4<u32>(0u));
  if (valid && b < DIM / 8u) { raw = loadEight(job.start + n - job.at, h, job, b); }
  tops[lid] = max(largest(raw.a), largest(raw.b));
  workgroupBarrier();
  var top = 0u;
  for (var k = 0u; k < B; k++) { top = max(top, tops[base + k]); }
  top = top >> 23u;
  var a = scaled4(raw.a, top, signs[job.at_signs + 2u * b]);
  var z = scaled4(raw.b, top, signs[job.at_signs + 2u * b + 1u]);
  a = vec4<f32>(a.x + a.y, a.x - a.y, a.z + a.w, a.z - a.w);
  z = vec4<f32>(z.x + z.y, z.x - z.y, z.z + z.w, z.z - z.w);
  a = vec4<f32>(a.xy + a.zw, a.xy - a.zw);
  z = vec4<f32>(z.xy + z.zw, z.xy - z.zw);
  let sum = a + z;
  z = a - z;
  a = sum;
  for (var s = 1u; s < B; s *= 2u) {
    even[lid] = a;
    odd[lid] = z;
    workgroupBarrier();
    let pa = even[lid ^ s];
    let pz = odd[lid ^ s];
    let upper = (b & s) != 0u;
    a = select(a + pa, pa - a, upper);
    z = select(z + pz, pz - z, upper);
    workgroupBarrier();
  }
  let square = dot(a, a) + dot(z, z);
  let r = sqrt(square);
  let fa = abs(a);
  let fz = abs(z);
  var ia = vec4<u32>(0u);
  var iz = vec4<u32>(0u);
  for (var k = 0u; k < 7u; k++) {
    ia += select(vec4<u32>(0u), vec4<u32>(1u), fa >= vec4<f32>(T[k] * r));
    iz += select(vec4<u32>(0u), vec4<u32>(1u), fz >= vec4<f32>(T[k] * r));
  }
  if (r == 0.0) { ia = vec4<u32>(0u); iz = vec4<u32>(0u); }
  let id = nibble(vec4<u32>(a >= vec4<f32>(0.0))) | (nibble(vec4<u32>(z >= vec4<f32>(0.0))) << 4u);
  var code = id;
  for (var p = 0u; p < 3u; p++) {
    let one = vec4<u32>(1u);
    let shift = vec4<u32>(p);
    code |= (nibble((ia >> shift) & one) | (nibble((iz >> shift) & one) << 4u)) << (8u + 8u * p);
  }
  var weight = 0.0;
  if (r > 0.0) { weight = square / (dot(pick(ia), fa) + dot(pick(iz), fz)) * INV_SQRT_D; }
  codes[lid] = code;
  parts[lid] = weight;
  workgroupBarrier();
  var most = 0.0;
  for (var k = 0u; k < B; k++) { most = max(most, parts[base + k]); }
  var byte = 0u;
  var half = 0u;
  if (most > 0.0) {
    let e = exponent(top);
    // The least bf16 that is at least most · 2^e / 255, never subnormal; `unit` is its value over 2^e.
    half = u32(max(i32((bitcast<u32>(most / 255.0) + 0xffffu) >> 16u) + e * 128, 128));
    let unit = bitcast<f32>(((half & 127u) << 16u) | (u32(i32(half >> 7u) - e) << 23u));
    byte = min(255u, u32(floor(weight / unit + 0.5)));
  }
  bytes[lid] = byte;
  if (b == 0u) { halves[slot] = half; }
  workgroupBarrier();
  for (var i = lid; i < KEYS * S; i += 256u) {
    let m = first + i / S;
    if (m >= job.at && m < job.at + job.count) {
      let key = h * job.zone + m;
      let w = i % S;
      planes[job.at_planes + key * S + w] = gather(i, 0u);
      for (var p = 0u; p < 3u; p++) { magnitudes[job.at_magnitudes + (key * 3u + p) * S + w] = gather(i, 8u + 8u * p); }
      var word = 0u;
      for (var k = 0u; k < min(4u, B); k++) { word |= bytes[i / S * B + w * 4u + k] << (8u * k); }
      weights[job.at_weights + key * S + w] = word;
    }
  }
  if (lid < KEYS / 2u) {
    let m = first + 2u * lid;
    let lower = m >= job.at && m < job.at + job.count;
    let upper = m + 1u >= job.at && m + 1u < job.at + job.count;
    let at = job.at_scales + (h * job.zone + m) / 2u;
    if (lower && upper) { scales[at] = halves[2u * lid] | (halves[2u * lid + 1u] << 16u); }
    else if (lower) { scales[at] = (scales[at] & 0xffff0000u) | halves[2u * lid]; }
    else if (upper) { scales[at] = (scales[at] & 0xffffu) | (halves[2u * lid + 1u] << 16u); }
  }
  if (COUNTS == 1u && valid) { atomicAdd(&counts[job.at_counts + (h * B + b) * 256u + id], 1u); }
}

//! program norm-need
// Largest exponent that any new key's length asks for, a head: atomicMax, so order does not show.
var<workgroup> most: atomic<i32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let i = blockOf(wid, job) * 256u + lid;
  if (lid == 0u) { atomicStore(&most, -1000); }
  workgroupBarrier();
  if (i < job.count) {
    let n = keyNorm(job.start + i, h, job);
    if (n.size > 0.0) { atomicMax(&most, n.e + i32(bitcast<u32>(n.size) >> 23u) - 127 - 7); }
  }
  workgroupBarrier();
  if (lid == 0u) { atomicMax(&need[job.at_need + h], atomicLoad(&most)); }
}

//! program norm-write
// Shifts the bytes before `at` by what the exponent grew, floor of floor, and writes those of the new keys: one thread a word.
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let n = 4u * (blockOf(wid, job) * 256u + lid);
  if (n >= job.at + job.count) { return; }
  let now = normExp[job.at_normExp + h];
  let e = max(now, need[job.at_need + h]);
  let shift = u32(min(8, e - now));
  let old = norms[job.at_norms + (h * job.zone + n) / 4u];
  var word = 0u;
  for (var k = 0u; k < 4u; k++) {
    var byte = (old >> (8u * k)) & 255u;
    let m = n + k;
    if (m < job.at) { byte = byte >> shift; }
    else if (m < job.at + job.count) {
      let v = keyNorm(job.start + m - job.at, h, job);
      byte = 0u;
      if (v.size > 0.0 && v.e - e > -40) { byte = min(255u, u32(v.size * power(v.e - e))); }
    }
    word |= byte << (8u * k);
  }
  norms[job.at_norms + (h * job.zone + n) / 4u] = word;
}

//! program norm-raise alone
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) wid: vec3<u32>) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  normExp[job.at_normExp + h] = max(normExp[job.at_normExp + h], need[job.at_need + h]);
  need[job.at_need + h] = -1000;
}
