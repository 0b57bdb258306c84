// linear: input [T, n] f32 and weights [m, n] of a dtype -> output [T, m] f32 = x · Wᵀ (+ bias) (+ what is there). A job
// here is tokens token0.. of a call's job. Sums in f32, in an order that n and the program alone determine.

struct Raw { lo: vec4<u32>, hi: vec4<u32> }
const UNITS = select(1u, 2u, DTYPE == 0u);
fn weightRaw(row: u32, c: u32, job: Job) -> Raw {
  let at = job.at_weights + (row * (job.inputs / 8u) + c) * UNITS;
  let lo = weights[at];
  if (DTYPE == 0u) { return Raw(lo, weights[at + 1u]); }
  return Raw(lo, lo);
}
fn finish(sum: f32, token: u32, row: u32, job: Job) {
  let at = job.at_output + (job.token0 + token) * job.outputs + row;
  var y = sum;
  if (job.biased == 1u) { y += bias[job.at_bias + row]; }
  if (job.adds == 1u) { y += output[at]; }
  output[at] = y;
}

//! program linear-few
// Up to 8 tokens, limited by the memory that the weights come from: every weight is read once. LANES threads side by side
// take 8 coordinates each of four rows, so that a row's loads are coalesced and 16 bytes wide; the next ones are on their
// way while these are multiplied. 1024 / LANES rows a workgroup. Lanes are added up in workgroup memory: LANES / 8
// interleaved strips of eight, then the strips in order. COLUMNS is the number of tokens, rounded up to 1, 2, 4 or 8.
// NORM: the input is multiplied by the norm's weight on its way, and the sums by the norm's factor at the end, from squares
// that every LANES threads add up like the sums. GATED: the four rows are two of `weights` and the same two of `up`.
const GROUPS = 256u / LANES;
// Outputs of LANES threads.
const EACH = select(4u, 2u, GATED == 1u);
const STRIPS = LANES / 8u;
// Tokens added up at a time.
const TURN = min(COLUMNS, 2u);
var<workgroup> part: array<vec4<f32>, 256u * TURN>;
var<workgroup> squares: array<f32, select(1u, 256u * TURN, NORM == 1u)>;

fn upRaw(row: u32, c: u32, job: Job) -> Raw {
  let at = job.at_up + (row * (job.inputs / 8u) + c) * UNITS;
  let lo = up[at];
  if (DTYPE == 0u) { return Raw(lo, up[at + 1u]); }
  return Raw(lo, lo);
}
struct Four { r0: Raw, r1: Raw, r2: Raw, r3: Raw }
fn load(row: u32, c: u32, job: Job) -> Four {
  let last = job.outputs - 1u;
  if (GATED == 1u) {
    let r0 = min(row, last);
    let r1 = min(row + 1u, last);
    return Four(weightRaw(r0, c, job), weightRaw(r1, c, job), upRaw(r0, c, job), upRaw(r1, c, job));
  }
  return Four(weightRaw(min(row, last), c, job), weightRaw(min(row + 1u, last), c, job),
    weightRaw(min(row + 2u, last), c, job), weightRaw(min(row + 3u, last), c, job));
}
struct FourF { r0: EightF, r1: EightF, r2: EightF, r3: EightF }
fn widenFour(w: Four) -> FourF {
  return FourF(widenF(DTYPE, w.r0.lo, w.r0.hi), widenF(DTYPE, w.r1.lo, w.r1.hi),
    widenF(DTYPE, w.r2.lo, w.r2.hi), widenF(DTYPE, w.r3.lo, w.r3.hi));
}
fn inner(x: EightF, w: EightF) -> f32 { return dot(x.a, w.a) + dot(x.b, w.b); }
// Four rows' sums of a token, and its sum of squares.
struct Sums { rows: vec4<f32>, squares: f32 }
// Adds the products with eight coordinates; a token beyond the last gets the last one's, which nobody writes.
fn add(sums: Sums, w: FourF, scale: EightF, token: u32, c: u32, job: Job) -> Sums {
  let at = job.at_input + (job.token0 + min(token, job.tokens - 1u)) * (job.inputs / 4u) + 2u * c;
  var x = EightF(input[at], input[at + 1u]);
  var squares = sums.squares;
  if (NORM == 1u) {
    squares += inner(x, x);
    x = EightF(x.a * scale.a, x.b * scale.b);
  }
  return Sums(sums.rows + vec4<f32>(inner(x, w.r0), inner(x, w.r1), inner(x, w.r2), inner(x, w.r3)), squares);
}
fn scaleAt(c: u32, job: Job) -> EightF {
  if (NORM == 0u) { return EightF(); }
  return EightF(norm[job.at_norm + 2u * c], norm[job.at_norm + 2u * c + 1u]);
}

// Tokens token and token + 1, over the lanes.
fn addUp(a: Sums, b: Sums, token: u32, row0: u32, lid: u32, job: Job) {
  part[lid] = a.rows;
  if (NORM == 1u) { squares[lid] = a.squares; }
  if (TURN == 2u) {
    part[256u + lid] = b.rows;
    if (NORM == 1u) { squares[256u + lid] = b.squares; }
  }
  workgroupBarrier();
  let first = lid / STRIPS * LANES + lid % STRIPS;
  if (lid < GROUPS * STRIPS * TURN) {
    var sum = part[first];
    for (var k = 1u; k < 8u; k++) { sum += part[first + k * STRIPS]; }
    part[first] = sum;
    if (NORM == 1u) {
      var square = squares[first];
      for (var k = 1u; k < 8u; k++) { square += squares[first + k * STRIPS]; }
      squares[first] = square;
    }
  }
  workgroupBarrier();
  // One thread a row and token.
  if (lid < GROUPS * TURN * EACH) {
    let which = lid / (EACH * GROUPS);
    let r = lid % (EACH * GROUPS);
    let at = which * 256u + r / EACH * LANES;
    var sum = part[at];
    for (var k = 1u; k < STRIPS; k++) { sum += part[at + k]; }
    if (NORM == 1u) {
      var square = squares[at];
      for (var k = 1u; k < STRIPS; k++) { square += squares[at + k]; }
      sum *= 1.0 / sqrt(square / f32(job.inputs) + job.epsilon);
    }
    if (row0 + r < job.outputs && token + which < job.tokens) {
      let y = sum[r % EACH];
      finish(select(y, silu(y) * sum[(r % EACH + 2u) % 4u], GATED == 1u), token + which, row0 + r, job);
    }
  }
  workgroupBarrier();
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let row0 = blockOf(wid, job) * EACH * GROUPS;
  if (row0 >= job.outputs) { return; }
  let row = row0 + lid / LANES * EACH;
  let eights = job.inputs / 8u;
  var a0 = Sums();
  var a1 = a0;
  var a2 = a0;
  var a3 = a0;
  var a4 = a0;
  var a5 = a0;
  var a6 = a0;
  var a7 = a0;
  var c = lid % LANES;
  if (c < eights) {
    var raw = load(row, c, job);
    loop {
      let next = load(row, min(c + LANES, eights - 1u), job);
      let w = widenFour(raw);
      let scale = scaleAt(c, job);
      a0 = add(a0, w, scale, 0u, c, job);
      if (COLUMNS > 1u) { a1 = add(a1, w, scale, 1u, c, job); }
      if (COLUMNS > 2u) {
        a2 = add(a2, w, scale, 2u, c, job);
        a3 = add(a3, w, scale, 3u, c, job);
      }
      if (COLUMNS > 4u) {
        a4 = add(a4, w, scale, 4u, c, job);
        a5 = add(a5, w, scale, 5u, c, job);
        a6 = add(a6, w, scale, 6u, c, job);
        a7 = add(a7, w, scale, 7u, c, job);
      }
      c += LANES;
      if (c >= eights) { break; }
      raw = next;
    }
  }
  addUp(a0, a1, 0u, row0, lid, job);
  if (COLUMNS > 2u) { addUp(a2, a3, 2u, row0, lid, job); }
  if (COLUMNS > 4u) {
    addUp(a4, a5, 4u, row0, lid, job);
    addUp(a6, a7, 6u, row0, lid, job);
  }
}

//! program linear-many
// Tiles of 128 rows x 64 tokens, 8 x 4 a thread, in steps of 16 coordinates as f32 in workgroup memory (15 KiB); rows there
// are five vectors apart, so that neighbours lie in different banks. The next step's loads are on their way while this one
// is multiplied. Bound by arithmetic: 2 · n operations a row and token.
const PITCH = 5u;
var<workgroup> ws: array<vec4<f32>, 640>;
var<workgroup> xs: array<vec4<f32>, 320>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let row0 = blockOf(wid, job) * 128u;
  if (row0 >= job.outputs) { return; }
  let tx = lid % 16u;
  let ty = lid / 16u;
  let eights = job.inputs / 8u;
  let w_row = min(row0 + lid / 2u, job.outputs - 1u);
  let x_row = job.at_input + (job.token0 + min(lid / 4u, job.tokens - 1u)) * (job.inputs / 4u);
  var acc = array<vec4<f32>, 8>();
  var w = weightRaw(w_row, min(lid % 2u, eights - 1u), job);
  var x = input[x_row + min(lid % 4u, 2u * eights - 1u)];
  for (var c = 0u; c < eights; c += 2u) {
    // Beyond the last coordinate a weight counts for nothing: its input is 0.
    let wide = widenF(DTYPE, w.lo, w.hi);
    let at = lid / 2u * PITCH + lid % 2u * 2u;
    ws[at] = wide.a;
    ws[at + 1u] = wide.b;
    xs[lid / 4u * PITCH + lid % 4u] = select(vec4<f32>(0.0), x, c + lid % 4u / 2u < eights);
    workgroupBarrier();
    w = weightRaw(w_row, min(c + 2u + lid % 2u, eights - 1u), job);
    x = input[x_row + min(2u * c + 4u + lid % 4u, 2u * eights - 1u)];
    for (var k = 0u; k < 4u; k++) {
      let x0 = xs[ty * PITCH + k];
      let x1 = xs[(ty + 16u) * PITCH + k];
      let x2 = xs[(ty + 32u) * PITCH + k];
      let x3 = xs[(ty + 48u) * PITCH + k];
      for (var r = 0u; r < 8u; r++) {
        let v = ws[(tx + 16u * r) * PITCH + k];
        acc[r] += vec4<f32>(dot(v, x0), dot(v, x1), dot(v, x2), dot(v, x3));
      }
    }
    workgroupBarrier();
  }
  for (var r = 0u; r < 8u; r++) {
    let row = row0 + tx + 16u * r;
    for (var t = 0u; t < 4u; t++) {
      let token = ty + 16u * t;
      if (row < job.outputs && token < job.tokens) { finish(acc[r][t], token, row, job); }
    }
  }
}
