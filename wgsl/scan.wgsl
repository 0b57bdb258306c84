// Prefix sums over a workgroup of 256: 16 threads add up 16 entries each, a row apart by one bank; 3 barriers.
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
