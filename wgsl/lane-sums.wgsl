// Sums over the LANES threads of a slot of two vectors each, told to all of them; order of addition fixed by LANES.

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
// Within a subgroup of at least LANES threads in order: half of the lanes take over `a`, the others `b`; no barrier.
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
