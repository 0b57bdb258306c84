// Shared by every kernel. What precedes it is generated from programs.ts: the specialization's constants, `Job`, and the
// bindings. A dispatch runs up to 16 jobs, workgroup z = job; workgroup y = head, times folds of x beyond the limit.
// `at_name` is where the job's buffer begins in the bound window, in elements, modulo 2^32: windows may start after it. A
// head wider than one binding comes as several dispatches, from workgroup `block0` on, or, with SEGMENT, for keys lo..hi - 1.

fn headOf(wid: vec3<u32>, job: Job) -> u32 { return job.head0 + wid.y % job.gy; }
fn blockOf(wid: vec3<u32>, job: Job) -> u32 { return job.block0 + wid.x + wid.y / job.gy * job.gx; }

// Exponent bits of 8 stored elements as two vec4 of f32 bit patterns. Dtypes: 0 f32, 1 f16, 2 bf16.
struct Eight { a: vec4<u32>, b: vec4<u32> }

fn halfBits(h: u32) -> u32 {
  let e = (h >> 10u) & 31u;
  let m = h & 1023u;
  let small = bitcast<u32>(f32(m) * 5.9604644775390625e-8);
  return ((h & 0x8000u) << 16u) | select(((e + 112u) << 23u) | (m << 13u), small, e == 0u);
}
fn halfPair(w: u32) -> vec2<u32> { return vec2<u32>(halfBits(w & 0xffffu), halfBits(w >> 16u)); }
fn brainPair(w: u32) -> vec2<u32> { return vec2<u32>(w << 16u, w & 0xffff0000u); }

// `lo` holds all eight elements of a 16-bit dtype, the first four of f32.
fn widen(dtype: u32, lo: vec4<u32>, hi: vec4<u32>) -> Eight {
  if (dtype == 0u) { return Eight(lo, hi); }
  if (dtype == 1u) {
    return Eight(vec4<u32>(halfPair(lo.x), halfPair(lo.y)), vec4<u32>(halfPair(lo.z), halfPair(lo.w)));
  }
  return Eight(vec4<u32>(brainPair(lo.x), brainPair(lo.y)), vec4<u32>(brainPair(lo.z), brainPair(lo.w)));
}

struct EightF { a: vec4<f32>, b: vec4<f32> }
fn widenF(dtype: u32, lo: vec4<u32>, hi: vec4<u32>) -> EightF {
  if (dtype == 1u) {
    return EightF(vec4<f32>(unpack2x16float(lo.x), unpack2x16float(lo.y)),
      vec4<f32>(unpack2x16float(lo.z), unpack2x16float(lo.w)));
  }
  let w = widen(dtype, lo, hi);
  return EightF(bitcast<vec4<f32>>(w.a), bitcast<vec4<f32>>(w.b));
}

// x · 2^-e · sign on the bits, e the unbiased exponent of `top`, the largest biased one; 0 for subnormals and below 2^(e-60).
fn scaledBits(bits: u32, top: u32, flip: u32) -> u32 {
  let e = (bits >> 23u) & 255u;
  let moved = i32(e) - i32(top) + 127;
  let kept = e != 0u && top != 0u && moved >= 67;
  return select(0u, ((bits & 0x807fffffu) | (u32(moved) << 23u)) ^ flip, kept);
}
fn scaled4(bits: vec4<u32>, top: u32, signs: u32) -> vec4<f32> {
  let f = vec4<u32>(signs << 24u, signs << 16u, signs << 8u, signs) & vec4<u32>(0x80000000u);
  return bitcast<vec4<f32>>(vec4<u32>(scaledBits(bits.x, top, f.x), scaledBits(bits.y, top, f.y),
    scaledBits(bits.z, top, f.z), scaledBits(bits.w, top, f.w)));
}
fn exponent(top: u32) -> i32 { return select(i32(top) - 127, 0, top == 0u); }
// 2^e for -126 <= e <= 127.
fn power(e: i32) -> f32 { return bitcast<f32>(u32(e + 127) << 23u); }

// x / (1 + e^-x) from e^-|x|, which never overflows.
fn silu(x: f32) -> f32 {
  let e = exp(-abs(x));
  return x * (select(1.0, e, x < 0.0) / (1.0 + e));
}
