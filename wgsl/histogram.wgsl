// Counts scores into BINS bins of (score - LO) >> SHIFT: in workgroup memory where they fit (FITS), REP copies against
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
