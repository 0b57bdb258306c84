// Written by wgsl/embed.ts: the text of every .wgsl file here.
export const SOURCES = {
  attend: `// attend: queries [Hq, d] f32 and positions (first range, ids, second range) of K and V rows -> partials [parts, Hq, d + 2].
// One workgroup takes one run of positions and up to GQ queries of one head, so that a row is read once for all of them.
// Tiles of 2 · SLOTS rows: 8 coordinates a thread, D/8 threads a row. A row's dot products with four queries are added up
// over its threads as one vector: by shuffles in a subgroup, where there are subgroups as wide as a row, else in workgroup
// memory (lane-sums.wgsl). Every slot keeps a maximum of its own over its rows; V is accumulated in registers and added over the slots at the end, in slot
// order. Scores are in base 2 inside (scale · log2 e), the written maximum is natural. An empty part: 0, -Inf (bits given
// by the host), 0. Moves each K and V row once: 512 bytes a position and head at d 128 and 16 bits.
const LANES = D / 8u;
const SLOTS = WG / LANES;
const TILE = 2u * SLOTS;
const LOW = -3.0e38;
const KU = select(1u, 2u, KEY_DTYPE == 0u);
const VU = select(1u, 2u, VALUE_DTYPE == 0u);
var<workgroup> part: array<vec4<f32>, 2u * WG>;
var<workgroup> ends: array<vec4<f32>, SLOTS>;

fn positionAt(i: u32, h: u32, job: Job) -> u32 {
  if (i < job.first) { return job.before + i; }
  if (i < job.first + job.k) { return job.base + ids[job.at_ids + h * job.k + i - job.first]; }
  return job.after + i - job.first - job.k;
}
fn inSegment(i: u32, h: u32, job: Job) -> bool {
  let n = positionAt(i, h, job);
  return n >= job.lo && n < job.hi;
}
// What the segments before left of a query, its maximum in base 2.
struct Earlier { top: f32, sum: f32 }
fn earlier(out: u32, job: Job) -> Earlier {
  let sum = bitcast<f32>(partials[out + DIM + 1u]);
  if (job.lo == 0u || sum == 0.0) { return Earlier(LOW, 0.0); }
  return Earlier(bitcast<f32>(partials[out + DIM]) * 1.4426950408889634, sum);
}
struct Raw { lo: vec4<u32>, hi: vec4<u32> }
// What one thread reads of a tile: its coordinates of two K and two V rows.
struct Rows { k0: Raw, k1: Raw, v0: Raw, v1: Raw }
fn load(tile: u32, end: u32, slot: u32, h: u32, c: u32, job: Job) -> Rows {
  let none = Raw(vec4<u32>(0u), vec4<u32>(0u));
  if (tile >= end || c >= DIM / 8u) { return Rows(none, none, none, none); }
  var n0 = positionAt(min(tile + slot, end - 1u), h, job);
  var n1 = positionAt(min(tile + slot + SLOTS, end - 1u), h, job);
  if (SEGMENT == 1u) {
    n0 = clamp(n0, job.lo, job.hi - 1u);
    n1 = clamp(n1, job.lo, job.hi - 1u);
  }
  return Rows(keyRaw(n0, h, c, job), keyRaw(n1, h, c, job), valueRaw(n0, h, c, job), valueRaw(n1, h, c, job));
}
fn keyRaw(n: u32, h: u32, c: u32, job: Job) -> Raw {
  let at = job.at_keys + ((h * job.keyCap + n) * (DIM / 8u) + c) * KU;
  let lo = keys[at];
  if (KEY_DTYPE == 0u) { return Raw(lo, keys[at + 1u]); }
  return Raw(lo, lo);
}
fn valueRaw(n: u32, h: u32, c: u32, job: Job) -> Raw {
  let at = job.at_values + ((h * job.valueCap + n) * (DIM / 8u) + c) * VU;
  let lo = values[at];
  if (VALUE_DTYPE == 0u) { return Raw(lo, values[at + 1u]); }
  return Raw(lo, lo);
}
fn query(g: u32, h: u32, c: u32, job: Job) -> EightF {
  if (g >= GROUP || c >= DIM / 8u) { return EightF(vec4<f32>(0.0), vec4<f32>(0.0)); }
  let at = job.at_queries + (h * GROUP + g) * (DIM / 4u) + 2u * c;
  let f = job.scale * 1.4426950408889634;
  return EightF(queries[at] * f, queries[at + 1u] * f);
}
fn inner(q: EightF, k: EightF) -> f32 { return dot(q.a, k.a) + dot(q.b, k.b); }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let block = blockOf(wid, job);
  if (block >= job.parts * CHUNKS) { return; }
  let p = block / CHUNKS;
  let g0 = block % CHUNKS * GQ;
  let c = lid % LANES;
  let slot = lid / LANES;
  let begin = min(job.total, p * job.run);
  let end = min(job.total, begin + job.run);
  let q0 = query(g0, h, c, job);
  let q1 = query(g0 + 1u, h, c, job);
  let q2 = query(g0 + 2u, h, c, job);
  let q3 = query(g0 + 3u, h, c, job);
  var m = vec4<f32>(LOW);
  var l = vec4<f32>(0.0);
  var a0 = EightF(vec4<f32>(0.0), vec4<f32>(0.0));
  var a1 = a0;
  var a2 = a0;
  var a3 = a0;
  // The next tile's rows are on their way while this one is worked on.
  var rows = load(begin, end, slot, h, c, job);
  for (var tile = begin; tile < end; tile += TILE) {
    let next = load(tile + TILE, end, slot, h, c, job);
    let x0 = widenF(KEY_DTYPE, rows.k0.lo, rows.k0.hi);
    let x1 = widenF(KEY_DTYPE, rows.k1.lo, rows.k1.hi);
    var d0 = vec4<f32>(inner(q0, x0), 0.0, 0.0, 0.0);
    var d1 = vec4<f32>(inner(q0, x1), 0.0, 0.0, 0.0);
    if (GQ > 1u) { d0.y = inner(q1, x0); d1.y = inner(q1, x1); }
    if (GQ > 2u) { d0.z = inner(q2, x0); d1.z = inner(q2, x1); d0.w = inner(q3, x0); d1.w = inner(q3, x1); }
    let sums = laneSums(d0, d1, slot, c);
    let s0 = sums.a;
    let s1 = sums.b;
    var have0 = tile + slot < end;
    var have1 = tile + slot + SLOTS < end;
    if (SEGMENT == 1u) {
      have0 = have0 && inSegment(tile + slot, h, job);
      have1 = have1 && inSegment(tile + slot + SLOTS, h, job);
    }
    let top = max(m, max(select(vec4<f32>(LOW), s0, have0), select(vec4<f32>(LOW), s1, have1)));
    let fade = exp2(m - top);
    m = top;
    let w0 = select(vec4<f32>(0.0), exp2(s0 - top), have0);
    let w1 = select(vec4<f32>(0.0), exp2(s1 - top), have1);
    l = l * fade + w0 + w1;
    let y0 = widenF(VALUE_DTYPE, rows.v0.lo, rows.v0.hi);
    let y1 = widenF(VALUE_DTYPE, rows.v1.lo, rows.v1.hi);
    a0 = EightF(a0.a * fade.x + w0.x * y0.a + w1.x * y1.a, a0.b * fade.x + w0.x * y0.b + w1.x * y1.b);
    if (GQ > 1u) { a1 = EightF(a1.a * fade.y + w0.y * y0.a + w1.y * y1.a, a1.b * fade.y + w0.y * y0.b + w1.y * y1.b); }
    if (GQ > 2u) {
      a2 = EightF(a2.a * fade.z + w0.z * y0.a + w1.z * y1.a, a2.b * fade.z + w0.z * y0.b + w1.z * y1.b);
      a3 = EightF(a3.a * fade.w + w0.w * y0.a + w1.w * y1.a, a3.b * fade.w + w0.w * y0.b + w1.w * y1.b);
    }
    rows = next;
  }
  if (c == 0u) { ends[slot] = m; }
  workgroupBarrier();
  var peak = ends[0];
  for (var s = 1u; s < SLOTS; s++) { peak = max(peak, ends[s]); }
  let share = exp2(m - peak);
  a0 = EightF(a0.a * share.x, a0.b * share.x);
  a1 = EightF(a1.a * share.y, a1.b * share.y);
  a2 = EightF(a2.a * share.z, a2.b * share.z);
  a3 = EightF(a3.a * share.w, a3.b * share.w);
  workgroupBarrier();
  if (c == 0u) { ends[slot] = l * share; }
  for (var g = 0u; g < GQ; g++) {
    workgroupBarrier();
    var mine = a0;
    if (g == 1u) { mine = a1; } else if (g == 2u) { mine = a2; } else if (g == 3u) { mine = a3; }
    part[(slot * LANES + c) * 2u] = mine.a;
    part[(slot * LANES + c) * 2u + 1u] = mine.b;
    workgroupBarrier();
    let out = job.at_partials + ((p * job.heads + h) * GROUP + min(g0 + g, GROUP - 1u)) * (DIM + 2u);
    var before = Earlier(LOW, 0.0);
    if (SEGMENT == 1u) {
      before = earlier(out, job);
      storageBarrier();
    }
    if (g0 + g < GROUP) {
      let top = max(peak[g], before.top);
      let kept = exp2(before.top - top);
      let added = exp2(peak[g] - top);
      for (var t = lid; t < DIM; t += WG) {
        var sum = 0.0;
        for (var s = 0u; s < SLOTS; s++) { sum += part[(s * D + t) / 4u][t % 4u]; }
        if (SEGMENT == 1u) {
          sum *= added;
          if (before.sum > 0.0) { sum += kept * bitcast<f32>(partials[out + t]); }
        }
        partials[out + t] = bitcast<u32>(sum);
      }
      if (lid == 0u) {
        var sum = 0.0;
        for (var s = 0u; s < SLOTS; s++) { sum += ends[s][g]; }
        if (SEGMENT == 1u) { sum = added * sum + kept * before.sum; }
        let none = select(begin >= end, sum == 0.0, SEGMENT == 1u);
        partials[out + DIM] = select(bitcast<u32>(select(peak[g], top, SEGMENT == 1u) * 0.6931471805599453), job.minusInf, none);
        partials[out + DIM + 1u] = bitcast<u32>(sum);
      }
    }
  }
}
`,
  'coarse-collision': `// coarse-collision: sign plane, counts [H, B, 256] u32, y [H, Gc, D] f32 -> scores [H, stride] i16 of votes 0..6B.
// \`tiers\` ranks the 256 centroids of one subspace by counting (f32 sums as the reference; ties to the lower id) and keeps
// their votes as u8 [H, Gc, B, 256]; \`coarse-collision\` adds them up by lookups in workgroup memory, two keys a thread,
// and counts select's histogram. Moves 16 bytes a key (D 128) and writes 2.
const B = D / 8u;

//! program tiers
var<workgroup> scores: array<f32, 256>;
var<workgroup> weights: array<u32, 256>;
var<workgroup> votes: array<u32, 256>;

fn entry(i: u32, at: u32) -> f32 {
  let a = select(-y[at], y[at], (i & 1u) != 0u);
  let b = select(-y[at + 1u], y[at + 1u], (i & 2u) != 0u);
  let c = select(-y[at + 2u], y[at + 2u], (i & 4u) != 0u);
  let d = select(-y[at + 3u], y[at + 3u], (i & 8u) != 0u);
  return (a + b) + (c + d);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) id: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let cb = blockOf(wid, job);
  if (cb >= CHOOSERS * B) { return; }
  let at = job.at_y + h * CHOOSERS * D + cb * 8u;
  let mine = entry(id & 15u, at) + entry(id >> 4u, at + 4u);
  scores[id] = mine;
  weights[id] = counts[job.at_counts + (h * B + cb % B) * 256u + id];
  workgroupBarrier();
  var before = 0u;
  for (var k = 0u; k < 256u; k++) {
    let better = scores[k] > mine || (scores[k] == mine && k < id);
    before += select(0u, weights[k], better);
  }
  votes[id] = select(0u, 1u, before < job.limit0) + select(0u, 1u, before < job.limit1)
    + select(0u, 1u, before < job.limit2) + select(0u, 1u, before < job.limit3)
    + select(0u, 1u, before < job.limit4) + select(0u, 1u, before < job.limit5);
  workgroupBarrier();
  if (id < 64u) {
    table[job.at_table + (h * CHOOSERS * B + cb) * 64u + id] =
      votes[4u * id] | (votes[4u * id + 1u] << 8u) | (votes[4u * id + 2u] << 16u) | (votes[4u * id + 3u] << 24u);
  }
}

//! program coarse-collision uses histogram
const S = (B + 3u) / 4u;
var<workgroup> votes: array<u32, B * 64u>;

fn lookup(row: u32) -> i32 {
  var sum = 0u;
  for (var w = 0u; w < S; w++) {
    let four = planes[row + w];
    for (var k = 0u; k < min(4u, B); k++) {
      let id = (four >> (8u * k)) & 255u;
      sum += (votes[(4u * w + k) * 64u + id / 4u] >> (8u * (id % 4u))) & 255u;
    }
  }
  return i32(sum);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let begin = blockOf(wid, job) * job.chunk;
  if (begin >= job.count) { return; }
  let end = min(begin + job.chunk, job.count);
  let hist = job.at_scratch + h * BINS;
  let out = job.at_scores + h * (job.stride / 2u);
  for (var c = 0u; c < CHOOSERS; c++) {
    workgroupBarrier();
    for (var i = lid; i < B * 64u; i += 256u) { votes[i] = table[job.at_table + (h * CHOOSERS + c) * B * 64u + i]; }
    workgroupBarrier();
    for (var n = begin + 2u * lid; n < end; n += 512u) {
      let row = job.at_planes + (h * job.zone + n) * S;
      var a = lookup(row);
      var b = lookup(row + S);
      if (c > 0u) {
        let old = scores[out + n / 2u];
        a = max(a, i32(old & 0xffffu));
        b = max(b, i32(old >> 16u));
      }
      scores[out + n / 2u] = u32(a) | (u32(b) << 16u);
      if (c == CHOOSERS - 1u) {
        tally(a, lid, hist);
        if (n + 1u < end) { tally(b, lid, hist); }
      }
    }
  }
  workgroupBarrier();
  flush(lid, hist);
}
`,
  'coarse-signs': `// coarse-signs: sign plane [H, zone, S words], t [H, Gc, D] i8 -> scores [H, stride] i16, two a word.
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
`,
  dense: `// dense: causal attention of queries [Hq, T, d] at positions first.. over K and V rows -> output [Hq, T, d], lse [Hq, T].
// A workgroup takes 64 (token, query of the group) rows of one head against tiles of 32 keys: 4 x 2 scores a thread from
// 16-coordinate slices in workgroup memory, then 4 rows x 8 (or 16) coordinates of output a thread. Running maximum and sum
// a row, base 2 inside, natural log outside. Arithmetic bound: 4 · d operations a query and visible position.
const COLS = (D + 127u) / 128u;
const LOW = -3.0e38;
const VU = select(1u, 2u, VALUE_DTYPE == 0u);
var<workgroup> qs: array<f32, 1088>;
var<workgroup> ks: array<f32, 544>;
var<workgroup> ps: array<f32, 2112>;
var<workgroup> stat: array<f32, 256>;

fn keyPair(n: u32, h: u32, pair: u32, job: Job) -> vec2<f32> {
  let e = (h * job.keyCap + n) * (DIM / 2u) + pair;
  if (KEY_DTYPE == 0u) { return bitcast<vec2<f32>>(vec2<u32>(keys[job.at_keys + 2u * e], keys[job.at_keys + 2u * e + 1u])); }
  let word = keys[job.at_keys + e];
  if (KEY_DTYPE == 1u) { return unpack2x16float(word); }
  return bitcast<vec2<f32>>(brainPair(word));
}

fn both(a: f32, b: f32) -> f32 {
  let top = max(a, b);
  return top + log(exp(a - top) + exp(b - top));
}
// What this segment, whose own lse is \`now\`, and those before weigh in a row; it sees nothing of a segment beyond its token.
fn shares(now: f32, row: u32, h: u32, job: Job) -> vec2<f32> {
  if (job.lo == 0u) { return vec2<f32>(1.0, 0.0); }
  if (job.first + row / GROUP < job.lo) { return vec2<f32>(0.0, 1.0); }
  let before = lse[job.at_lse + (h * GROUP + row % GROUP) * job.tokens + row / GROUP];
  let all = both(before, now);
  return vec2<f32>(exp(now - all), exp(before - all));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let rows = job.tokens * GROUP;
  let row0 = blockOf(wid, job) * 64u;
  if (row0 >= rows) { return; }
  let tx = lid % 16u;
  let ty = lid / 16u;
  var begin = 0u;
  var visible = job.first + min(row0 + 63u, rows - 1u) / GROUP + 1u;
  if (SEGMENT == 1u) {
    begin = job.lo;
    visible = min(visible, job.hi);
    if (begin >= visible) { return; }
  }
  let mine = min(row0 + lid / 4u, rows - 1u);
  let q_row = job.at_queries + ((h * GROUP + mine % GROUP) * job.tokens + mine / GROUP) * (DIM / 4u);
  let reach = job.first + mine / GROUP;
  var m = LOW;
  var l = 0.0;
  var acc = array<vec4<f32>, 8u * COLS>();
  for (var n0 = begin; n0 < visible; n0 += 32u) {
    var s = array<f32, 8>();
    for (var j0 = 0u; j0 < DIM; j0 += 16u) {
      let j = j0 + 4u * (lid % 4u);
      var q = vec4<f32>(0.0);
      if (j < DIM) { q = queries[q_row + j / 4u]; }
      let at = lid / 4u * 17u + 4u * (lid % 4u);
      qs[at] = q.x;
      qs[at + 1u] = q.y;
      qs[at + 2u] = q.z;
      qs[at + 3u] = q.w;
      let pair = j0 / 2u + lid % 8u;
      var k = vec2<f32>(0.0);
      if (pair < DIM / 2u) { k = keyPair(min(n0 + lid / 8u, visible - 1u), h, pair, job); }
      ks[lid / 8u * 17u + 2u * (lid % 8u)] = k.x;
      ks[lid / 8u * 17u + 2u * (lid % 8u) + 1u] = k.y;
      workgroupBarrier();
      for (var i = 0u; i < 16u; i++) {
        let ka = ks[tx * 17u + i];
        let kb = ks[(tx + 16u) * 17u + i];
        for (var r = 0u; r < 4u; r++) {
          let x = qs[(ty * 4u + r) * 17u + i];
          s[r] += x * ka;
          s[r + 4u] += x * kb;
        }
      }
      workgroupBarrier();
    }
    for (var r = 0u; r < 4u; r++) {
      ps[(ty * 4u + r) * 33u + tx] = s[r];
      ps[(ty * 4u + r) * 33u + tx + 16u] = s[r + 4u];
    }
    workgroupBarrier();
    // Four threads a row, eight scores each.
    let own = lid / 4u * 33u + 8u * (lid % 4u);
    var top = m;
    for (var k = 0u; k < 8u; k++) {
      let n = n0 + 8u * (lid % 4u) + k;
      let score = select(LOW, ps[own + k] * job.scale * 1.4426950408889634, n <= reach && (SEGMENT == 0u || n < job.hi));
      ps[own + k] = score;
      top = max(top, score);
    }
    stat[lid] = top;
    workgroupBarrier();
    let quad = lid & 0xfcu;
    top = max(max(stat[quad], stat[quad + 1u]), max(stat[quad + 2u], stat[quad + 3u]));
    let fade = exp2(m - top);
    m = top;
    l *= fade;
    for (var k = 0u; k < 8u; k++) {
      let w = exp2(ps[own + k] - top);
      ps[own + k] = w;
      l += w;
    }
    if (lid % 4u == 0u) { ps[lid / 4u * 33u + 32u] = fade; }
    workgroupBarrier();
    for (var r = 0u; r < 4u; r++) {
      let f = ps[(ty * 4u + r) * 33u + 32u];
      for (var k = 0u; k < 2u * COLS; k++) { acc[r * 2u * COLS + k] *= f; }
    }
    for (var n = 0u; n < min(32u, visible - n0); n++) {
      for (var col = 0u; col < COLS; col++) {
        let c = tx + 16u * col;
        if (c < DIM / 8u) {
          let at = job.at_values + ((h * job.valueCap + n0 + n) * (DIM / 8u) + c) * VU;
          let lo = values[at];
          var hi = lo;
          if (VALUE_DTYPE == 0u) { hi = values[at + 1u]; }
          let v = widenF(VALUE_DTYPE, lo, hi);
          for (var r = 0u; r < 4u; r++) {
            let w = ps[(ty * 4u + r) * 33u + n];
            acc[(r * COLS + col) * 2u] += w * v.a;
            acc[(r * COLS + col) * 2u + 1u] += w * v.b;
          }
        }
      }
    }
    workgroupBarrier();
  }
  stat[lid] = l;
  if (SEGMENT == 1u && lid % 4u == 0u) { ps[lid / 4u * 33u + 32u] = m; }
  workgroupBarrier();
  for (var r = 0u; r < 4u; r++) {
    let local = ty * 4u + r;
    let row = row0 + local;
    if (row < rows) {
      let sum = ((stat[4u * local] + stat[4u * local + 1u]) + stat[4u * local + 2u]) + stat[4u * local + 3u];
      let out = job.at_output + ((h * GROUP + row % GROUP) * job.tokens + row / GROUP) * (DIM / 4u);
      var share = vec2<f32>(1.0, 0.0);
      if (SEGMENT == 1u) { share = shares(ps[local * 33u + 32u] * 0.6931471805599453 + log(sum), row, h, job); }
      for (var col = 0u; col < COLS; col++) {
        let c = tx + 16u * col;
        if (c < DIM / 8u) {
          var a = acc[(r * COLS + col) * 2u] / sum;
          var b = acc[(r * COLS + col) * 2u + 1u] / sum;
          if (SEGMENT == 1u) {
            a *= share.x;
            b *= share.x;
            if (share.y > 0.0) {
              a += share.y * output[out + 2u * c];
              b += share.y * output[out + 2u * c + 1u];
            }
          }
          output[out + 2u * c] = a;
          output[out + 2u * c + 1u] = b;
        }
      }
    }
  }
  if (SEGMENT == 1u) { storageBarrier(); }
  let row = row0 + lid / 4u;
  if (lid % 4u == 0u && row < rows) {
    let sum = ((stat[lid] + stat[lid + 1u]) + stat[lid + 2u]) + stat[lid + 3u];
    let at = job.at_lse + (h * GROUP + row % GROUP) * job.tokens + row / GROUP;
    let now = m * 0.6931471805599453 + log(sum);
    if (SEGMENT == 0u || job.lo == 0u) { lse[at] = now; }
    else if (job.first + row / GROUP >= job.lo) { lse[at] = both(lse[at], now); }
  }
}
`,
  encode: `// encode: keys [H, cap, d] -> planes, weights, scales of the summary (align 4: S = ⌈B/4⌉ words a plane and key).
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
    // The least bf16 that is at least most · 2^e / 255, never subnormal; \`unit\` is its value over 2^e.
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
// Shifts the bytes before \`at\` by what the exponent grew, floor of floor, and writes those of the new keys: one thread a word.
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
`,
  gate: `// gate: output = silu(gate) · up, one value a thread. IN_PLACE: the output holds the gate.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let i = blockOf(wid, job) * 256u + lid;
  if (i >= job.count) { return; }
  var x = 0.0;
  if (IN_PLACE == 1u) { x = output[job.at_output + i]; } else { x = gate[job.at_gate + i]; }
  output[job.at_output + i] = silu(x) * up[job.at_up + i];
}
`,
  histogram: `// Counts scores into BINS bins of (score - LO) >> SHIFT: in workgroup memory where they fit (FITS), REP copies against
// collisions, then added to the head's global histogram. Integer sums: the order of the atomics does not show.
var<workgroup> bins: array<atomic<u32>, select(1u, BINS * REP, FITS == 1u)>;

fn tally(score: i32, lid: u32, at: u32) {
  let bin = u32(score - LO) >> SHIFT;
  if (FITS == 1u) { atomicAdd(&bins[bin * REP + lid % REP], 1u); }
  else { atomicAdd(&scratch[at + bin], 1u); }
}
fn flush(lid: u32, at: u32) {
  if (FITS == 1u) {
    for (var i = lid; i < BINS; i += 256u) {
      var sum = 0u;
      for (var k = 0u; k < REP; k++) { sum += atomicLoad(&bins[i * REP + k]); }
      if (sum > 0u) { atomicAdd(&scratch[at + i], sum); }
    }
  }
}
`,
  'lane-sums': `// Sums over the LANES threads of a slot of two vectors each, told to all of them; order of addition fixed by LANES.

//! program lane-sums-shared
// In workgroup memory, as whole vectors: two threads must not write components of one. First QUARTERS threads of a slot add
// up every fourth term, then all add up the quarters.
const QUARTERS = min(4u, LANES);
var<workgroup> quarters: array<vec4<f32>, SLOTS * QUARTERS * 2u>;
struct LaneSums { a: vec4<f32>, b: vec4<f32> }
fn laneSums(a: vec4<f32>, b: vec4<f32>, slot: u32, c: u32) -> LaneSums {
  part[slot * 2u * LANES + c] = a;
  part[(slot * 2u + 1u) * LANES + c] = b;
  workgroupBarrier();
  for (var v = c; v < 2u * QUARTERS; v += LANES) {
    let lane = (slot * 2u + v / QUARTERS) * LANES + v % QUARTERS;
    var sum = part[lane];
    for (var k = QUARTERS; k < LANES; k += QUARTERS) { sum += part[lane + k]; }
    quarters[slot * 2u * QUARTERS + v] = sum;
  }
  workgroupBarrier();
  let at = slot * 2u * QUARTERS;
  var sums = LaneSums(quarters[at], quarters[at + QUARTERS]);
  for (var k = 1u; k < QUARTERS; k++) {
    sums.a += quarters[at + k];
    sums.b += quarters[at + QUARTERS + k];
  }
  return sums;
}

//! program lane-sums-shuffled
// Within a subgroup of at least LANES threads in order: half of the lanes take over \`a\`, the others \`b\`; no barrier.
struct LaneSums { a: vec4<f32>, b: vec4<f32> }
fn laneSums(a: vec4<f32>, b: vec4<f32>, slot: u32, c: u32) -> LaneSums {
  if (LANES == 1u) { return LaneSums(a, b); }
  let upper = c >= LANES / 2u;
  var mine = select(a, b, upper) + subgroupShuffleXor(select(b, a, upper), LANES / 2u);
  if (LANES > 16u) { mine += subgroupShuffleXor(mine, 8u); }
  if (LANES > 8u) { mine += subgroupShuffleXor(mine, 4u); }
  if (LANES > 4u) { mine += subgroupShuffleXor(mine, 2u); }
  if (LANES > 2u) { mine += subgroupShuffleXor(mine, 1u); }
  let other = subgroupShuffleXor(mine, LANES / 2u);
  return LaneSums(select(mine, other, upper), select(other, mine, upper));
}
`,
  linear: `// linear: input [T, n] f32 and weights [m, n] of a dtype -> output [T, m] f32 = x · Wᵀ (+ bias) (+ what is there). A job
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
// that every LANES threads add up like the sums. GATED: the four rows are two of \`weights\` and the same two of \`up\`.
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
`,
  lookup: `// lookup: ids [T] and a table [V, n] of a dtype -> output [T, n] f32, on the bits: exact. One thread eight coordinates.
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
`,
  merge: `// merge: partials [parts, Hq, d + 2] f32 -> output [Hq, d], lse [Hq], natural logarithm.
// One workgroup 32 coordinates of a query head, 8 slices of the parts, each in part order, then the slices in order. A part
// whose sum is 0 is empty and counts for nothing; nothing at all gives output 0 and lse -Inf (bits given by the host).
// Moves the partials once, and their last two words once more for every 32 coordinates.
var<workgroup> tree: array<f32, 256>;
var<workgroup> factors: array<f32, 256>;

fn state(at: u32, p: u32, pitch: u32, job: Job) -> vec2<f32> {
  if (p >= job.parts) { return vec2<f32>(-3.0e38, 0.0); }
  return vec2<f32>(partials[at + p * pitch + DIM], partials[at + p * pitch + DIM + 1u]);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let hq = headOf(wid, job);
  let j = blockOf(wid, job) * 32u + lid % 32u;
  let slice = lid / 32u;
  let pitch = job.heads * (DIM + 2u);
  let at = job.at_partials + hq * (DIM + 2u);
  var top = -3.0e38;
  for (var p = lid; p < job.parts; p += 256u) {
    let here = state(at, p, pitch, job);
    if (here.y > 0.0) { top = max(top, here.x); }
  }
  tree[lid] = top;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s /= 2u) {
    if (lid < s) { tree[lid] = max(tree[lid], tree[lid + s]); }
    workgroupBarrier();
  }
  let peak = tree[0];
  var sum = 0.0;
  var weight = 0.0;
  for (var first = 0u; first < job.parts; first += 256u) {
    let here = state(at, first + lid, pitch, job);
    let factor = select(0.0, exp(here.x - peak), here.y > 0.0);
    weight += factor * here.y;
    workgroupBarrier();
    factors[lid] = factor;
    workgroupBarrier();
    if (j < DIM) {
      let count = min(256u, job.parts - first);
      for (var k = slice; k < count; k += 8u) { sum += factors[k] * partials[at + (first + k) * pitch + j]; }
    }
  }
  workgroupBarrier();
  tree[lid] = weight;
  factors[lid] = sum;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s /= 2u) {
    if (lid < s) { tree[lid] += tree[lid + s]; }
    workgroupBarrier();
  }
  let total = tree[0];
  if (slice == 0u && j < DIM) {
    for (var s = 1u; s < 8u; s++) { sum += factors[32u * s + lid]; }
    output[job.at_output + hq * DIM + j] = select(0.0, sum / total, total > 0.0);
  }
  if (j == 0u && slice == 0u) { lse[job.at_lse + hq] = select(job.minusInf, bitcast<u32>(peak + log(total)), total > 0.0); }
}
`,
  norm: `// norm: input [R, n] f32 -> output x / sqrt(mean(x²) + ε) · weight. LANES threads a row, 256 / LANES rows a workgroup, so
// that short rows (the norms of queries and keys) fill it. Squares are added up a thread, then pairwise over the lanes.
// IN_PLACE: the output holds the input; each thread writes only what it alone reads. Reads every value twice, the
// second time from a cache.
const ROWS = 256u / LANES;
var<workgroup> part: array<f32, 256>;

fn valueAt(i: u32, job: Job) -> vec4<f32> {
  if (IN_PLACE == 1u) { return output[job.at_output + i]; }
  return input[job.at_input + i];
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let row0 = blockOf(wid, job) * ROWS;
  if (row0 >= job.rows) { return; }
  let row = row0 + lid / LANES;
  let lane = lid % LANES;
  let quads = job.width / 4u;
  let base = row * quads;
  var sum = 0.0;
  if (row < job.rows) {
    for (var c = lane; c < quads; c += LANES) {
      let x = valueAt(base + c, job);
      sum += dot(x, x);
    }
  }
  part[lid] = sum;
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    if (lane < half) { part[lid] += part[lid + half]; }
    workgroupBarrier();
  }
  if (row >= job.rows) { return; }
  let scale = 1.0 / sqrt(part[lid - lane] / f32(job.width) + job.epsilon);
  for (var c = lane; c < quads; c += LANES) {
    output[job.at_output + base + c] = valueAt(base + c, job) * scale * weight[job.at_weight + c];
  }
}
`,
  query: `// query: queries [Hq, d] f32 -> chosen [H, Gc, d], y [H, Gc, D] butterflies, scales [H] = 2^e · unit, t [H, Gc, D] i8.
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
`,
  rerank: `// rerank: candidates [H, C] (or the keys 0..C-1) -> estimates [H, C] f32, the maximum over choosers.
// \`rerank-codes\`: RSQ-IP from the summary, a thread a candidate, words in order. ±level · y comes from a table in workgroup
// memory, [D, 16], shared by all: the threads stand at one coordinate, sixteen neighbouring words, so no two collide. The
// planes are first interleaved into nibbles: level index and sign of a coordinate side by side. Moves about 82 bytes a
// candidate (D 128), in sectors of 32.
// \`rerank-rows\`: the exact product with the stored keys, 16 threads a row.

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
// Σ_b w_b Σ_j ±level y over four subspaces from coordinate \`at\` on.
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
`,
  rope: `// rope: input [outer, inner, d] f32 -> output [inner, outer, d]; where the job says so, rows are RMS-normalized, then turned
// by the table's row of their token (d/2 cosines, then d/2 sines). LANES threads a row, each four pairs (j, j + d/2) at a
// time. A row that is neither keeps its bits.
const ROWS = 256u / LANES;
var<workgroup> part: array<f32, 256>;

fn valueAt(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>(input[i]); }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let rows = job.outer * job.inner;
  let row0 = blockOf(wid, job) * ROWS;
  if (row0 >= rows) { return; }
  let row = row0 + lid / LANES;
  let lane = lid % LANES;
  let half = job.d / 8u;
  let src = job.at_input + row * 2u * half;
  var factor = 1.0;
  if (job.normed == 1u) {
    var squares = 0.0;
    if (row < rows) {
      for (var j = lane; j < 2u * half; j += LANES) { squares += dot(valueAt(src + j), valueAt(src + j)); }
    }
    part[lid] = squares;
    workgroupBarrier();
    squares = 0.0;
    for (var k = 0u; k < LANES; k++) { squares += part[lid - lane + k]; }
    factor = 1.0 / sqrt(squares / f32(job.d) + job.epsilon);
  }
  if (row >= rows) { return; }
  let o = row / job.inner;
  let n = row % job.inner;
  let dst = job.at_output + (n * job.outer + o) * 2u * half;
  for (var j = lane; j < half; j += LANES) {
    var a = input[src + j];
    var b = input[src + half + j];
    if (job.normed == 1u) {
      a = bitcast<vec4<u32>>(bitcast<vec4<f32>>(a) * factor * norm[job.at_norm + j]);
      b = bitcast<vec4<u32>>(bitcast<vec4<f32>>(b) * factor * norm[job.at_norm + half + j]);
    }
    if (job.turned == 1u) {
      let t = job.at_table + select(n, o, job.tokens_outer == 1u) * 2u * half + j;
      let cosine = table[t];
      let sine = table[t + half];
      let x = bitcast<vec4<f32>>(a);
      let y = bitcast<vec4<f32>>(b);
      a = bitcast<vec4<u32>>(x * cosine - y * sine);
      b = bitcast<vec4<u32>>(y * cosine + x * sine);
    }
    output[dst + j] = a;
    output[dst + half + j] = b;
  }
}
`,
  rotate: `// rotate: x [R, d] f32 -> y [R, D] f32 butterflies of x · 2^-e, exponents [R] i32.
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
`,
  scan: `// Prefix sums over a workgroup of 256: 16 threads add up 16 entries each, a row apart by one bank; 3 barriers.
var<workgroup> lanes: array<vec2<u32>, 272>;
var<workgroup> rows: array<vec2<u32>, 16>;

// Sum over the threads before this one, and over all.
struct Scan { before: vec2<u32>, all: vec2<u32> }
fn scan(own: vec2<u32>, lid: u32) -> Scan {
  workgroupBarrier();
  lanes[lid + lid / 16u] = own;
  workgroupBarrier();
  if (lid < 16u) {
    var run = vec2<u32>(0u);
    for (var i = 0u; i < 16u; i++) {
      let at = lid * 17u + i;
      let here = lanes[at];
      lanes[at] = run;
      run += here;
    }
    rows[lid] = run;
  }
  workgroupBarrier();
  var result = Scan(lanes[lid + lid / 16u], vec2<u32>(0u));
  for (var i = 0u; i < 16u; i++) {
    let here = rows[i];
    if (i < lid / 16u) { result.before += here; }
    result.all += here;
  }
  return result;
}

// The same for four packed counts at once.
var<workgroup> lanes4: array<vec4<u32>, 272>;
var<workgroup> rows4: array<vec4<u32>, 16>;
struct Scan4 { before: vec4<u32>, all: vec4<u32> }
fn scanTiles(own: vec4<u32>, lid: u32) -> Scan4 {
  workgroupBarrier();
  lanes4[lid + lid / 16u] = own;
  workgroupBarrier();
  if (lid < 16u) {
    var run = vec4<u32>(0u);
    for (var i = 0u; i < 16u; i++) {
      let at = lid * 17u + i;
      let here = lanes4[at];
      lanes4[at] = run;
      run += here;
    }
    rows4[lid] = run;
  }
  workgroupBarrier();
  var result = Scan4(lanes4[lid + lid / 16u], vec4<u32>(0u));
  for (var i = 0u; i < 16u; i++) {
    let here = rows4[i];
    if (i < lid / 16u) { result.before += here; }
    result.all += here;
  }
  return result;
}
`,
  select: `// select: scores [H, stride] i16 -> ids [H, C] u32, the C best in index order, ties at the threshold to the lower index.
// Two passes over chunks of a head: \`select-count\` finds the threshold from the histogram and counts each chunk,
// \`select-write\` places the chosen at their rank, and clears the histogram for the next time. Scratch a job, in words:
// histogram [H, BINS] | threshold and ties to keep [H, 2] | chunk counts above and at the threshold [H, 256, 2].
// Prefix sums in two levels, 16 threads of 16 entries, so that four tiles of 2048 keys cost 3 barriers.
// Moves 2 bytes a key twice (the second time from cache) and writes 4 bytes a candidate.

fn scoreAt(word: u32, k: u32) -> i32 { return extractBits(bitcast<i32>(word), 16u * k, 16u); }
fn binOf(score: i32) -> u32 { return u32(score - LO) >> SHIFT; }

// The scores of keys n..n + 7, the last again beyond the end; the loads do not wait for each other.
fn fetch(row: u32, n: u32, end: u32) -> vec4<u32> {
  let last = row + (end - 1u) / 2u;
  let at = row + n / 2u;
  return vec4<u32>(scores[min(last, at)], scores[min(last, at + 1u)], scores[min(last, at + 2u)], scores[min(last, at + 3u)]);
}
// Two bits a key: above the threshold, at it.
const ABOVE = 0x55555555u;
const TIED = 0xaaaaaaaau;
fn marksOf(words: vec4<u32>, n: u32, end: u32, threshold: u32) -> u32 {
  if (n >= end) { return 0u; }
  var marks = 0u;
  for (var k = 0u; k < 8u; k++) {
    let bin = binOf(scoreAt(words[k / 2u], k % 2u));
    marks |= select(select(0u, 2u, bin == threshold), 1u, bin > threshold) << (2u * k);
  }
  return select(marks, marks & ((1u << (2u * min(end - n, 8u))) - 1u), end - n < 8u);
}
// Eight keys of each of four tiles, 2048 keys apart, whose loads go out together: tiles 0 and 1 in x, 2 and 3 in y.
fn fourTiles(row: u32, n: u32, end: u32, threshold: u32) -> vec2<u32> {
  let a = fetch(row, n, end);
  let b = fetch(row, n + 2048u, end);
  let c = fetch(row, n + 4096u, end);
  let d = fetch(row, n + 6144u, end);
  return vec2<u32>(marksOf(a, n, end, threshold) | (marksOf(b, n + 2048u, end, threshold) << 16u),
    marksOf(c, n + 4096u, end, threshold) | (marksOf(d, n + 6144u, end, threshold) << 16u));
}

//! program select-histogram alone uses histogram
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let begin = blockOf(wid, job) * job.chunk;
  if (begin >= job.count) { return; }
  let end = min(begin + job.chunk, job.count);
  let hist = job.at_scratch + h * BINS;
  for (var n = begin + lid; n < end; n += 256u) {
    let word = scores[job.at_scores + (h * job.stride + n) / 2u];
    tally(extractBits(bitcast<i32>(word), 16u * (n % 2u), 16u), lid, hist);
  }
  workgroupBarrier();
  flush(lid, hist);
}

//! program select-count uses scan
var<workgroup> found: vec2<u32>;
fn binAt(hist: u32, i: u32) -> u32 { return scratch[hist + BINS - 1u - min(i, BINS - 1u)]; }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let block = blockOf(wid, job);
  let begin = block * job.chunk;
  if (begin >= job.count) { return; }
  let hist = job.at_scratch + h * BINS;
  // Thread 0 holds the highest bins; the prefix runs from the top.
  const PER = (BINS + 255u) / 256u;
  var own = 0u;
  for (var k = 0u; k < PER; k += 4u) {
    let i = lid * PER + k;
    let four = vec4<u32>(binAt(hist, i), binAt(hist, i + 1u), binAt(hist, i + 2u), binAt(hist, i + 3u));
    for (var j = 0u; j < 4u; j++) { if (k + j < PER && i + j < BINS) { own += four[j]; } }
  }
  let before = scan(vec2<u32>(own, 0u), lid).before.x;
  if (before < job.candidates && before + own >= job.candidates) {
    var left = job.candidates - before;
    var i = lid * PER;
    loop {
      let here = scratch[hist + BINS - 1u - i];
      if (here >= left) { break; }
      left -= here;
      i++;
    }
    found = vec2<u32>(BINS - 1u - i, left);
    if (block == 0u) {
      scratch[job.at_scratch + job.state + 2u * h] = found.x;
      scratch[job.at_scratch + job.state + 2u * h + 1u] = found.y;
    }
  }
  workgroupBarrier();
  let threshold = found.x;
  let end = min(begin + job.chunk, job.count);
  let row = job.at_scores + h * (job.stride / 2u);
  var mine = vec2<u32>(0u);
  for (var n = begin + 8u * lid; n < end; n += 8192u) {
    let marks = fourTiles(row, n, end, threshold);
    mine += vec2<u32>(countOneBits(marks.x & ABOVE) + countOneBits(marks.y & ABOVE),
      countOneBits(marks.x & TIED) + countOneBits(marks.y & TIED));
  }
  let all = scan(mine, lid).all;
  if (lid == 0u) {
    let at = job.at_scratch + job.blocks + 2u * (h * 256u + block);
    scratch[at] = all.x;
    scratch[at + 1u] = all.y;
  }
}

//! program select-write uses scan

// Writes the marked among keys n..n + 7 and returns the tile's end: keys above and ties before it.
fn place(marks: u32, n: u32, base: vec2<u32>, before: u32, all: u32, keep: u32, out: u32) -> vec2<u32> {
  var at = base + vec2<u32>(before & 0xffffu, before >> 16u);
  for (var left = marks; left != 0u; left &= left - 1u) {
    let bit = countTrailingZeros(left);
    let tied = bit & 1u;
    if (tied == 0u || at.y < keep) { ids[out + at.x + min(at.y, keep)] = n + bit / 2u; }
    at += vec2<u32>(1u - tied, tied);
  }
  return base + vec2<u32>(all & 0xffffu, all >> 16u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let block = blockOf(wid, job);
  let begin = block * job.chunk;
  if (begin >= job.count) { return; }
  let blocks = (job.count + job.chunk - 1u) / job.chunk;
  for (var i = block * 256u + lid; i < BINS; i += blocks * 256u) { scratch[job.at_scratch + h * BINS + i] = 0u; }
  var earlier = vec2<u32>(0u);
  if (lid < block) {
    let at = job.at_scratch + job.blocks + 2u * (h * 256u + lid);
    earlier = vec2<u32>(scratch[at], scratch[at + 1u]);
  }
  let threshold = scratch[job.at_scratch + job.state + 2u * h];
  let keep = scratch[job.at_scratch + job.state + 2u * h + 1u];
  let end = min(begin + job.chunk, job.count);
  let row = job.at_scores + h * (job.stride / 2u);
  let out = job.at_ids + h * job.candidates;
  var base = scan(earlier, lid).all;
  for (var tile = begin; tile < end; tile += 8192u) {
    let n = tile + 8u * lid;
    let marks = fourTiles(row, n, end, threshold);
    let halves = vec4<u32>(marks.x & 0xffffu, marks.x >> 16u, marks.y & 0xffffu, marks.y >> 16u);
    // Of each tile, keys above in the lower half of a word and ties in the upper: 2048 fit.
    let own = countOneBits(halves & vec4<u32>(ABOVE)) | (countOneBits(halves & vec4<u32>(TIED)) << vec4<u32>(16u));
    let sums = scanTiles(own, lid);
    base = place(halves.x, n, base, sums.before.x, sums.all.x, keep, out);
    base = place(halves.y, n + 2048u, base, sums.before.y, sums.all.y, keep, out);
    base = place(halves.z, n + 4096u, base, sums.before.z, sums.all.z, keep, out);
    base = place(halves.w, n + 6144u, base, sums.before.w, sums.all.w, keep, out);
  }
}
`,
  shared: `// Shared by every kernel. What precedes it is generated from programs.ts: the specialization's constants, \`Job\`, and the
// bindings. A dispatch runs up to 16 jobs, workgroup z = job; workgroup y = head, times folds of x beyond the limit.
// \`at_name\` is where the job's buffer begins in the bound window, in elements, modulo 2^32: windows may start after it. A
// head wider than one binding comes as several dispatches, from workgroup \`block0\` on, or, with SEGMENT, for keys lo..hi - 1.

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

// \`lo\` holds all eight elements of a 16-bit dtype, the first four of f32.
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

// x · 2^-e · sign on the bits, e the unbiased exponent of \`top\`, the largest biased one; 0 for subnormals and below 2^(e-60).
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
`,
  store: `// store: tokens [H, T, d] of a dtype -> rows [H, cap, d] of another, at a position. One thread eight coordinates: d is a
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
// f16 widened by itself: exponent 31 is NaN or Inf, which \`widen\` takes for a number.
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
`,
  topk: `// topk: values [H, C] f32 (ids [H, C] or 0..C-1) -> topIds, topValues [H, K], by value descending, ties to the lower id.
// One workgroup of WG threads a head: radix selection of the K-th on order-preserving u32 keys (-0 as 0), RADIX bits a pass,
// then, where equal values straddle the threshold, of the position; the K survivors are sorted bitonically on
// (value, position), which is unique, so that the order of their collection does not show. Above the sort's
// capacity they go to scratch and \`topk-rank\` places each by counting. Where K is at most a quarter of the threads (FEW),
// a shorter way comes first: hardly more than K values reach the K-th greatest of the threads' maxima; if at most 256 reach
// a bound close below it, counting who is greater places them. Reads the values once from memory, then from cache.
fn ordered(v: f32) -> u32 {
  let bits = select(bitcast<u32>(v), 0u, v == 0.0);
  return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
fn idAt(i: u32, h: u32, job: Job) -> u32 {
  if (job.listed == 1u) { return ids[job.at_ids + h * job.count + i]; }
  return i;
}

//! program topk
const BUCKETS = 1u << RADIX;
const PASSES = (32u + RADIX - 1u) / RADIX;
var<workgroup> buckets: array<atomic<u32>, BUCKETS>;
var<workgroup> sums: array<u32, WG>;
var<workgroup> survivors: array<vec2<u32>, SORT>;
// A bucket, what is still to be found in it, and how many it holds; or one number for all threads.
var<workgroup> found: vec3<u32>;
var<workgroup> taken: atomic<u32>;
var<workgroup> few: array<vec2<u32>, FEW>;
var<workgroup> ranks: array<atomic<u32>, FEW>;
var<workgroup> extremes: array<vec2<u32>, 32>;

// A lower bound on the K-th greatest of one key a thread (the first \`count\` have one), close below it: 256 equal steps
// between the least and the greatest are counted, and the step is taken that the K-th falls into.
fn bound(mine: u32, k: u32, count: u32, lid: u32) -> u32 {
  sums[lid] = mine;
  for (var i = lid; i < 256u; i += WG) { atomicStore(&buckets[i], 0u); }
  workgroupBarrier();
  if (lid < 32u) {
    var ends = vec2<u32>(0xffffffffu, 0u);
    for (var i = lid; i < min(WG, count); i += 32u) { ends = vec2<u32>(min(ends.x, sums[i]), max(ends.y, sums[i])); }
    extremes[lid] = ends;
  }
  workgroupBarrier();
  var lo = 0xffffffffu;
  var hi = 0u;
  for (var i = 0u; i < 32u; i++) {
    lo = min(lo, extremes[i].x);
    hi = max(hi, extremes[i].y);
  }
  let shift = u32(max(0, 24 - i32(countLeadingZeros(hi - lo))));
  if (lid < count) { atomicAdd(&buckets[(mine - lo) >> shift], 1u); }
  workgroupBarrier();
  var own = 0u;
  if (lid < 16u) {
    for (var i = 0u; i < 16u; i++) { own += atomicLoad(&buckets[255u - 16u * lid - i]); }
    sums[lid] = own;
  }
  workgroupBarrier();
  if (lid < 16u) {
    var before = 0u;
    for (var i = 0u; i < lid; i++) { before += sums[i]; }
    if (before < k && before + own >= k) {
      var need = k - before;
      var bucket = 255u - 16u * lid;
      loop {
        let here = atomicLoad(&buckets[bucket]);
        if (here >= need) { break; }
        need -= here;
        bucket--;
      }
      found = vec3<u32>(bucket, 0u, 0u);
    }
  }
  return lo + (workgroupUniformLoad(&found).x << shift);
}

// Eight keys, WG apart, whose loads do not wait for each other; 0 beyond the end.
const AHEAD = 8u;
fn fetch(row: u32, i: u32, job: Job) -> array<u32, AHEAD> {
  let end = job.count - 1u;
  let a = vec4<f32>(values[row + i], values[row + min(end, i + WG)], values[row + min(end, i + 2u * WG)],
    values[row + min(end, i + 3u * WG)]);
  let b = vec4<f32>(values[row + min(end, i + 4u * WG)], values[row + min(end, i + 5u * WG)],
    values[row + min(end, i + 6u * WG)], values[row + min(end, i + 7u * WG)]);
  var o = array<u32, AHEAD>(ordered(a.x), ordered(a.y), ordered(a.z), ordered(a.w), ordered(b.x), ordered(b.y), ordered(b.z),
    ordered(b.w));
  for (var k = 1u; k < AHEAD; k++) { o[k] = select(0u, o[k], i + k * WG <= end); }
  return o;
}

// The short way; false where it does not apply.
fn chooseFew(row: u32, h: u32, job: Job, lid: u32) -> bool {
  var most = 0u;
  for (var i = lid; i < job.count; i += AHEAD * WG) {
    let o = fetch(row, i, job);
    for (var k = 0u; k < AHEAD; k++) { most = max(most, o[k]); }
  }
  let least = bound(most, job.k, job.count, lid);
  for (var i = lid; i < FEW; i += WG) { atomicStore(&ranks[i], 0u); }
  for (var i = lid; i < job.count; i += AHEAD * WG) {
    let o = fetch(row, i, job);
    for (var k = 0u; k < AHEAD; k++) {
      if (o[k] >= least && i + k * WG < job.count) {
        let at = atomicAdd(&taken, 1u);
        if (at < FEW) { few[at] = vec2<u32>(o[k], i + k * WG); }
      }
    }
  }
  workgroupBarrier();
  if (lid == 0u) { found = vec3<u32>(atomicLoad(&taken), 0u, 0u); }
  let n = workgroupUniformLoad(&found).x;
  if (n > FEW) {
    if (lid == 0u) { atomicStore(&taken, 0u); }
    workgroupBarrier();
    return false;
  }
  const SHARE = WG / FEW;
  let mine = few[lid % FEW];
  if (lid % FEW < n) {
    var greater = 0u;
    for (var i = lid / FEW; i < n; i += max(1u, SHARE)) {
      let other = few[i];
      greater += select(0u, 1u, other.x > mine.x || (other.x == mine.x && other.y < mine.y));
    }
    atomicAdd(&ranks[lid % FEW], greater);
  }
  workgroupBarrier();
  if (lid < n) {
    let rank = atomicLoad(&ranks[lid]);
    if (rank < job.k) {
      topIds[job.at_topIds + h * job.k + rank] = idAt(mine.y, h, job);
      topValues[job.at_topValues + h * job.k + rank] = values[row + mine.y];
    }
  }
  return true;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let row = job.at_values + h * job.count;
  if (FEW > 1u) {
    if (chooseFew(row, h, job, lid)) { return; }
  }
  // Levels below PASSES look at values, the others at ~position; \`prefix\` holds the digits found so far.
  var prefix = 0u;
  var value = 0u;
  var left = job.k;
  var hit = vec3<u32>(0u);
  for (var level = 0u; level < 2u * PASSES; level++) {
    let second = level >= PASSES;
    let turn = level % PASSES;
    if (level == PASSES) {
      value = prefix;
      prefix = 0u;
      if (hit.z == left) { break; }
    }
    let low = max(i32(32u - RADIX * (turn + 1u)), 0);
    let width = 32u - RADIX * turn - u32(low);
    for (var i = lid; i < BUCKETS; i += WG) { atomicStore(&buckets[i], 0u); }
    workgroupBarrier();
    for (var i = lid; i < job.count; i += WG) {
      let o = ordered(values[row + i]);
      let key = select(o, ~i, second);
      let high = u32(low) + width;
      let fits = high >= 32u || (key >> (high % 32u)) == (prefix >> (high % 32u));
      if (fits && (!second || o == value)) { atomicAdd(&buckets[extractBits(key, u32(low), width)], 1u); }
    }
    workgroupBarrier();
    const PER = (BUCKETS + WG - 1u) / WG;
    var own = 0u;
    for (var k = 0u; k < PER; k++) {
      let i = lid * PER + k;
      if (i < BUCKETS) { own += atomicLoad(&buckets[BUCKETS - 1u - i]); }
    }
    sums[lid] = own;
    workgroupBarrier();
    for (var s = 1u; s < WG; s *= 2u) {
      var add = 0u;
      if (lid >= s) { add = sums[lid - s]; }
      workgroupBarrier();
      sums[lid] += add;
      workgroupBarrier();
    }
    let upto = sums[lid];
    if (upto >= left && upto - own < left) {
      var need = left - (upto - own);
      var i = lid * PER;
      loop {
        let here = atomicLoad(&buckets[BUCKETS - 1u - i]);
        if (here >= need) {
          found = vec3<u32>(BUCKETS - 1u - i, need, here);
          break;
        }
        need -= here;
        i++;
      }
    }
    hit = workgroupUniformLoad(&found);
    prefix |= hit.x << u32(low);
    left = hit.y;
  }
  // Not narrowed by position: every key equal to the threshold is kept.
  let least = prefix;
  for (var i = lid; i < SORT; i += WG) { survivors[i] = vec2<u32>(0u, 0xffffffffu); }
  workgroupBarrier();
  for (var i = lid; i < job.count; i += WG) {
    let o = ordered(values[row + i]);
    if (o > value || (o == value && ~i >= least)) {
      let at = atomicAdd(&taken, 1u);
      if (SORT > 1u) { survivors[at] = vec2<u32>(o, i); }
      else { spill[job.at_spill + h * job.k + at] = vec2<u32>(o, i); }
    }
  }
  if (SORT > 1u) {
    workgroupBarrier();
    for (var size = 2u; size <= SORT; size *= 2u) {
      for (var step = size / 2u; step > 0u; step /= 2u) {
        for (var i = lid; i < SORT / 2u; i += WG) {
          let a = 2u * i - (i & (step - 1u));
          let p = survivors[a];
          let q = survivors[a + step];
          let first = p.x > q.x || (p.x == q.x && p.y < q.y);
          if (first != ((a & size) == 0u)) {
            survivors[a] = q;
            survivors[a + step] = p;
          }
        }
        workgroupBarrier();
      }
    }
    for (var i = lid; i < job.k; i += WG) {
      let at = survivors[i].y;
      topIds[job.at_topIds + h * job.k + i] = idAt(at, h, job);
      topValues[job.at_topValues + h * job.k + i] = values[row + at];
    }
  }
}

//! program topk-rank
var<workgroup> tile: array<vec2<u32>, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let job = jobs[wid.z];
  let h = headOf(wid, job);
  let i = blockOf(wid, job) * 256u + lid;
  let row = job.at_spill + h * job.k;
  let mine = spill[row + min(i, job.k - 1u)];
  var rank = 0u;
  for (var t = 0u; t < job.k; t += 256u) {
    workgroupBarrier();
    tile[lid] = vec2<u32>(0u, 0xffffffffu);
    if (t + lid < job.k) { tile[lid] = spill[row + t + lid]; }
    workgroupBarrier();
    for (var k = 0u; k < 256u; k++) {
      let q = tile[k];
      rank += select(0u, 1u, q.x > mine.x || (q.x == mine.x && q.y < mine.y));
    }
  }
  if (i < job.k) {
    topIds[job.at_topIds + h * job.k + rank] = idAt(mine.y, h, job);
    topValues[job.at_topValues + h * job.k + rank] = values[job.at_values + h * job.count + mine.y];
  }
}
`,
  word: `// How a key's planes are read: 1, 2 or 4 u32 at a time, and Σ_p 2^p |v_p| over four bit planes of one such word.
// With 4 words a carry-save adder sums the planes first: 6 population counts in place of 16, which are four times as
// dear as logic on most GPUs.

//! program word-1
alias Word = u32;
const WORDS = 1u;
fn word_at(word: Word, q: u32) -> u32 { return word; }
fn word_of(a: u32, b: u32, c: u32, d: u32) -> Word { return a; }
fn weighted(v0: Word, v1: Word, v2: Word, v3: Word) -> u32 {
  return countOneBits(v0) + 2u * countOneBits(v1) + 4u * countOneBits(v2) + 8u * countOneBits(v3);
}

//! program word-2
alias Word = vec2<u32>;
const WORDS = 2u;
fn word_at(word: Word, q: u32) -> u32 { return word[q]; }
fn word_of(a: u32, b: u32, c: u32, d: u32) -> Word { return Word(a, b); }
fn weighted(v0: Word, v1: Word, v2: Word, v3: Word) -> u32 {
  let v = countOneBits(v0) + 2u * countOneBits(v1) + 4u * countOneBits(v2) + 8u * countOneBits(v3);
  return v.x + v.y;
}

//! program word-4
alias Word = vec4<u32>;
const WORDS = 4u;
fn word_at(word: Word, q: u32) -> u32 { return word[q]; }
fn word_of(a: u32, b: u32, c: u32, d: u32) -> Word { return Word(a, b, c, d); }
fn odd(a: u32, b: u32, c: u32) -> u32 { return a ^ b ^ c; }
fn carry(a: u32, b: u32, c: u32) -> u32 { return (a & b) | (c & (a | b)); }
fn weighted(v0: Word, v1: Word, v2: Word, v3: Word) -> u32 {
  let s0 = odd(v0.x, v0.y, v0.z);
  let a1 = carry(v0.x, v0.y, v0.z);
  let b1 = s0 & v0.w;
  let s1 = odd(v1.x, v1.y, v1.z);
  let t1 = odd(v1.w, a1, b1);
  let a2 = carry(v1.x, v1.y, v1.z);
  let b2 = carry(v1.w, a1, b1);
  let c2 = s1 & t1;
  let s2 = odd(v2.x, v2.y, v2.z);
  let t2 = odd(v2.w, a2, b2);
  let a3 = carry(v2.x, v2.y, v2.z);
  let b3 = carry(v2.w, a2, b2);
  let c3 = carry(s2, t2, c2);
  let s3 = odd(v3.x, v3.y, v3.z);
  let t3 = odd(v3.w, a3, b3);
  let a4 = carry(v3.x, v3.y, v3.z);
  let b4 = carry(v3.w, a3, b3);
  let c4 = carry(s3, t3, c3);
  return countOneBits(s0 ^ v0.w) + 2u * countOneBits(s1 ^ t1) + 4u * countOneBits(odd(s2, t2, c2))
    + 8u * countOneBits(odd(s3, t3, c3)) + 16u * countOneBits(odd(a4, b4, c4)) + 32u * countOneBits(carry(a4, b4, c4));
}
`,
} as const
