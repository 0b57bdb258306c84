// store: tokens [H, T, d] of a dtype -> rows [H, cap, d] of another, at a position. One thread eight coordinates: d is a
// multiple of 8, so no word has two writers. Integers alone: round to nearest even, equal to the bit; what is not finite,
// or would round to Inf, is stored as 0 and counted. Moves every value once.
const TU = select(1u, 2u, TOKEN_DTYPE == 0u);
const RU = select(1u, 2u, ROW_DTYPE == 0u);

// Bits of the store's dtype; refused values come out as 0xffffffff.
fn kept(bits: u32) -> u32 {
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if (size >= 0x7f800000u) { return 0xffffffffu; }
  if (ROW_DTYPE == 0u) { return bits; }
  if (ROW_DTYPE == 2u) {
    let rounded = (size + 0x7fffu + ((size >> 16u) & 1u)) >> 16u;
    return select(sign | rounded, 0xffffffffu, rounded >= 0x7f80u);
  }
  if (size >= 0x477ff000u) { return 0xffffffffu; }
  if (size < 0x33000000u) { return sign; }
  let e = size >> 23u;
  let m = (size & 0x7fffffu) | 0x800000u;
  let shift = select(13u, 126u - e, e < 113u);
  let whole = m >> shift;
  let rest = m & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  let rounded = whole + select(0u, 1u, rest > half || (rest == half && (whole & 1u) == 1u));
  return sign | select(rounded + ((e - 113u) << 10u), rounded, e < 113u);
}
// f16 widened by itself: exponent 31 is NaN or Inf, which `widen` takes for a number.
fn whole16(h: u32) -> u32 {
  let inf = (h & 0x7c00u) == 0x7c00u;
  return select(halfBits(h), 0x7f800000u, inf);
}
fn wide(w: vec2<u32>) -> vec4<u32> {
  return vec4<u32>(whole16(w.x & 0xffffu), whole16(w.x >> 16u), whole16(w.y & 0xffffu), whole16(w.y >> 16u));
}
var<workgroup> lost: atomic<u32>;

fn four(bits: vec4<u32>) -> vec4<u32> {
  let v = vec4<u32>(kept(bits.x), kept(bits.y), kept(bits.z), kept(bits.w));
  let bad = v == vec4<u32>(0xffffffffu);
  let n = dot(select(vec4<u32>(0u), vec4<u32>(1u), bad), vec4<u32>(1u));
  if (n > 0u) { atomicAdd(&lost, n); }
  return select(v, vec4<u32>(0u), bad);
}
fn packed(v: vec4<u32>) -> vec2<u32> { return vec2<u32>(v.x | (v.y << 16u), v.z | (v.w << 16u)); }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let i = blockOf(wid, job) * 256u + lid;
  let eights = job.count * (DIM / 8u);
  if (lid == 0u) { atomicStore(&lost, 0u); }
  workgroupBarrier();
  if (i < eights) {
    let src = job.at_tokens + (h * eights + i) * TU;
    let lo = tokens[src];
    var v = Eight(lo, lo);
    if (TOKEN_DTYPE == 0u) { v.b = tokens[src + 1u]; }
    else if (TOKEN_DTYPE == 1u) { v = Eight(wide(lo.xy), wide(lo.zw)); }
    else { v = widen(2u, lo, lo); }
    let a = four(v.a);
    let b = four(v.b);
    let dst = job.at_rows + ((h * job.cap + job.at) * (DIM / 8u) + i) * RU;
    if (ROW_DTYPE == 0u) {
      rows[dst] = a;
      rows[dst + 1u] = b;
    } else {
      rows[dst] = vec4<u32>(packed(a), packed(b));
    }
  }
  workgroupBarrier();
  if (lid == 0u) {
    let n = atomicLoad(&lost);
    if (n > 0u) { atomicAdd(&refused[job.at_refused], n); }
  }
}
