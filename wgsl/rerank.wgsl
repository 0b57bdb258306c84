// rerank: candidates [H, C] (or the keys 0..C-1) -> estimates [H, C] f32, the maximum over choosers.
// `rerank-codes`: RSQ-IP from the summary, a thread a candidate, words in order. ±level · y comes from a table in workgroup
// memory, [D, 16], shared by all: the threads stand at one coordinate, sixteen neighbouring words, so no two collide. The
// planes are first interleaved into nibbles: level index and sign of a coordinate side by side. Moves about 82 bytes a
// candidate (D 128), in sectors of 32.
// `rerank-rows`: the exact product with the stored keys, 16 threads a row.

//! program rerank-codes
const B = D / 8u;
const NW = max(1u, D / 128u);
const LOWER = vec4<f32>(0.04250866710528162, 0.1280436505971762, 0.2152012184876915, 0.30532382043588224);
const UPPER = vec4<f32>(0.4002712711400757, 0.5030220634852353, 0.6193476458928237, 0.7648350836701993);
var<workgroup> table: array<f32, D * 16u>;

// One Word of every plane of one candidate, and the weights that go with it.
struct Code { s: Word, p0: Word, p1: Word, p2: Word, weights: Word }
fn load(key: u32, i: u32, job: Job) -> Code {
  let at = job.at_magnitudes + key * 3u * NW + i;
  return Code(sign_words[job.at_sign_words + key * NW + i], magnitudes[at], magnitudes[at + NW], magnitudes[at + 2u * NW],
    weights[job.at_weights + key * NW + i]);
}
// Nibble k of the result: level index and, as bit 3, the sign of coordinate 4k + r.
fn nibbles(s: u32, p0: u32, p1: u32, p2: u32, r: u32) -> u32 {
  const EACH = 0x11111111u;
  return ((p0 >> r) & EACH) | (((p1 >> r) & EACH) << 1u) | (((p2 >> r) & EACH) << 2u) | (((s >> r) & EACH) << 3u);
}
// Σ_b w_b Σ_j ±level y over four subspaces from coordinate `at` on.
fn product(s: u32, p0: u32, p1: u32, p2: u32, w: u32, at: u32) -> f32 {
  let n = vec4<u32>(nibbles(s, p0, p1, p2, 0u), nibbles(s, p0, p1, p2, 1u), nibbles(s, p0, p1, p2, 2u), nibbles(s, p0, p1, p2, 3u));
  var sum = 0.0;
  for (var b = 0u; b < min(4u, B); b++) {
    var dot = 0.0;
    for (var j = 0u; j < 8u; j++) {
      dot += table[(at + 8u * b + j) * 16u + extractBits(n[j % 4u], 8u * b + 4u * (j / 4u), 4u)];
    }
    sum += f32((w >> (8u * b)) & 255u) * dot;
  }
  return sum;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let i = blockOf(wid, job) * 256u + lid;
  if (blockOf(wid, job) * 256u >= job.count) { return; }
  var n = min(i, job.count - 1u);
  if (job.listed == 1u) { n = ids[job.at_ids + h * job.count + n]; }
  var mine = i < job.count;
  if (SEGMENT == 1u) {
    mine = mine && n >= job.lo && n < job.hi;
    n = clamp(n, job.lo, job.hi - 1u);
  }
  let key = h * job.zone + n;
  // On its way while the table is made.
  let first = load(key, 0u, job);
  let half = (scales[job.at_scales + key / 2u] >> (16u * (key % 2u))) & 0xffffu;
  let scale = bitcast<f32>(half << 16u) * qscales[job.at_qscales + h];
  var best = 0.0;
  for (var c = 0u; c < CHOOSERS; c++) {
    workgroupBarrier();
    for (var k = lid; k < D; k += 256u) {
      let v = y[job.at_y + (h * CHOOSERS + c) * D + k];
      for (var level = 0u; level < 4u; level++) {
        table[k * 16u + level] = -v * LOWER[level];
        table[k * 16u + 4u + level] = -v * UPPER[level];
        table[k * 16u + 8u + level] = v * LOWER[level];
        table[k * 16u + 12u + level] = v * UPPER[level];
      }
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var p = 0u; p < NW; p++) {
      var code = first;
      if (p > 0u) { code = load(key, p, job); }
      for (var q = 0u; q < WORDS; q++) {
        sum += product(word_at(code.s, q), word_at(code.p0, q), word_at(code.p1, q), word_at(code.p2, q),
          word_at(code.weights, q), (p * WORDS + q) * 32u);
      }
    }
    best = select(max(best, sum * scale), sum * scale, c == 0u);
  }
  if (mine) { estimates[job.at_estimates + h * job.count + i] = best; }
}

//! program rerank-rows
var<workgroup> parts: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let i = blockOf(wid, job) * 16u + lid / 16u;
  let lane = lid % 16u;
  var n = 0u;
  if (i < job.count) {
    n = i;
    if (job.listed == 1u) { n = ids[job.at_ids + h * job.count + i]; }
  }
  let mine = i < job.count && (SEGMENT == 0u || (n >= job.lo && n < job.hi));
  const UNIT = select(1u, 2u, DTYPE == 0u);
  let row = job.at_keys + (h * job.cap + job.base + n) * (DIM / 8u) * UNIT;
  var best = 0.0;
  for (var c = 0u; c < CHOOSERS; c++) {
    var sum = 0.0;
    if (mine) {
      let q = job.at_chosen + (h * CHOOSERS + c) * (DIM / 4u);
      for (var k = lane; k < DIM / 8u; k += 16u) {
        let lo = keys[row + k * UNIT];
        var hi = lo;
        if (DTYPE == 0u) { hi = keys[row + k * UNIT + 1u]; }
        let v = widen(DTYPE, lo, hi);
        sum += dot(bitcast<vec4<f32>>(v.a), chosen[q + 2u * k]) + dot(bitcast<vec4<f32>>(v.b), chosen[q + 2u * k + 1u]);
      }
    }
    parts[lid] = sum;
    workgroupBarrier();
    if (lane == 0u) {
      for (var k = 1u; k < 16u; k++) { sum += parts[lid + k]; }
      best = select(max(best, sum * job.scale), sum * job.scale, c == 0u);
    }
    workgroupBarrier();
  }
  if (lane == 0u && mine) { estimates[job.at_estimates + h * job.count + i] = best; }
}
