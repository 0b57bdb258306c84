// coarse-signs: sign plane [H, zone, S words], t [H, Gc, D] i8 -> scores [H, stride] i16, two a word.
// Σ s_j t_j = Σ_p 2^p (2 |agree ∧ plane_p| - |plane_p|) with the four bit planes of |t|: integers, equal to the bit.
// The maximum over choosers; with NORMS, (score · n8) >> 8, arithmetic. One thread two pairs of neighbouring keys at a time,
// a workgroup one chunk of a head; the histogram that select needs is counted on the way. At an odd count the last word's
// upper half is padding: written, not counted. Moves 16 bytes a key (D 128), 17 with NORMS, and writes 2.
//! program coarse-signs uses histogram
const W = (D + 31u) / 32u;
const NW = max(1u, W / 4u);
var<workgroup> planes: array<u32, 5u * W * CHOOSERS>;
var<workgroup> totals: array<atomic<i32>, CHOOSERS>;
var<workgroup> query: array<u32, CHOOSERS * D / 4u>;

// Plane p of |t|, or of t >= 0 for p = 4, words w of chooser c.
fn build(i: u32) -> u32 {
  let c = i / (5u * W);
  let p = i / W % 5u;
  let w = i % W;
  var word = 0u;
  var sum = 0u;
  for (var k = 0u; k < min(8u, D / 4u); k++) {
    let four = query[(c * D + w * 32u) / 4u + k];
    for (var b = 0u; b < 4u; b++) {
      let v = extractBits(bitcast<i32>(four), 8u * b, 8u);
      let bit = select((u32(abs(v)) >> p) & 1u, select(0u, 1u, v >= 0), p == 4u);
      word |= bit << (4u * k + b);
      if (p == 0u) { sum += u32(abs(v)); }
    }
  }
  if (p == 0u) { atomicAdd(&totals[c], i32(sum)); }
  return word;
}
fn word4(c: u32, p: u32, i: u32) -> Word {
  let at = ((c * 5u + p) * NW + i) * WORDS;
  const LAST = WORDS - 1u;
  return word_of(planes[at], planes[at + min(1u, LAST)], planes[at + min(2u, LAST)], planes[at + LAST]);
}
fn agreement(s: Word, sign: Word, p0: Word, p1: Word, p2: Word, p3: Word) -> i32 {
  let x = ~(s ^ sign);
  return i32(weighted(x & p0, x & p1, x & p2, x & p3));
}
fn weigh(score: i32, h: u32, n: u32, job: Job) -> i32 {
  if (NORMS == 0u) { return score; }
  return (score * i32((norms[job.at_norms + (h * job.zone + n) / 4u] >> (8u * (n % 4u))) & 255u)) >> 8u;
}

// Writes and counts the scores of keys n and n + 1.
fn keep(pair: vec2<i32>, n: u32, end: u32, h: u32, out: u32, lid: u32, hist: u32, job: Job) {
  let a = weigh(pair.x, h, n, job);
  let b = weigh(pair.y, h, n + 1u, job);
  scores[out + n / 2u] = (u32(a) & 0xffffu) | (u32(b) << 16u);
  tally(a, lid, hist);
  if (n + 1u < end) { tally(b, lid, hist); }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let begin = blockOf(wid, job) * job.chunk;
  if (begin >= job.count) { return; }
  for (var i = lid; i < CHOOSERS * D / 4u; i += 256u) { query[i] = t[job.at_t + h * CHOOSERS * D / 4u + i]; }
  workgroupBarrier();
  for (var i = lid; i < 5u * W * CHOOSERS; i += 256u) { planes[i] = build(i); }
  workgroupBarrier();
  let end = min(begin + job.chunk, job.count);
  let hist = job.at_scratch + h * BINS;
  let row = job.at_sign_words + h * job.zone * NW;
  let out = job.at_scores + h * (job.stride / 2u);
  let m0 = word4(0u, 0u, 0u);
  let m1 = word4(0u, 1u, 0u);
  let m2 = word4(0u, 2u, 0u);
  let m3 = word4(0u, 3u, 0u);
  let m4 = word4(0u, 4u, 0u);
  let total0 = atomicLoad(&totals[0]);
  for (var n = begin + 2u * lid; n < end; n += 1024u) {
    // The second pair's loads go out with the first's; beyond the end it is the first again, and not kept.
    let n2 = select(n, n + 512u, n + 512u < end);
    var best = vec4<i32>(-32768);
    if (CHOOSERS == 1u && NW == 1u) {
      let a = sign_words[row + n];
      let b = sign_words[row + n + 1u];
      let c = sign_words[row + n2];
      let d = sign_words[row + n2 + 1u];
      best = 2 * vec4<i32>(agreement(a, m4, m0, m1, m2, m3), agreement(b, m4, m0, m1, m2, m3),
        agreement(c, m4, m0, m1, m2, m3), agreement(d, m4, m0, m1, m2, m3)) - total0;
    } else {
      for (var c = 0u; c < CHOOSERS; c++) {
        var sums = vec4<i32>(0);
        for (var i = 0u; i < NW; i++) {
          let p4 = word4(c, 4u, i);
          let p0 = word4(c, 0u, i);
          let p1 = word4(c, 1u, i);
          let p2 = word4(c, 2u, i);
          let p3 = word4(c, 3u, i);
          sums += vec4<i32>(agreement(sign_words[row + n * NW + i], p4, p0, p1, p2, p3),
            agreement(sign_words[row + (n + 1u) * NW + i], p4, p0, p1, p2, p3),
            agreement(sign_words[row + n2 * NW + i], p4, p0, p1, p2, p3),
            agreement(sign_words[row + (n2 + 1u) * NW + i], p4, p0, p1, p2, p3));
        }
        best = max(best, 2 * sums - atomicLoad(&totals[c]));
      }
    }
    keep(best.xy, n, end, h, out, lid, hist, job);
    if (n2 != n) { keep(best.zw, n2, end, h, out, lid, hist, job); }
  }
  workgroupBarrier();
  flush(lid, hist);
}
