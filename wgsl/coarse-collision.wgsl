// coarse-collision: sign plane, counts [H, B, 256] u32, y [H, Gc, D] f32 -> scores [H, stride] i16 of votes 0..6B.
// `tiers` ranks the 256 centroids of one subspace by counting (f32 sums as the reference; ties to the lower id) and keeps
// their votes as u8 [H, Gc, B, 256]; `coarse-collision` adds them up by lookups in workgroup memory, two keys a thread,
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
