/*
 * One linear memory: tables, static data, then blocks that lie end to end up to `top`:
 *
 *   | size | next |  8 spare  | payload, 16-byte aligned ........ | size | next | ...      top ... guard |
 *
 * Free blocks form a list in address order; a released block joins its free neighbours, so memory that was given
 * back is whole again. The last GUARD bytes stay unused: kernels may read a vector past the end of a row.
 */
const HEADER: usize = 16
const GUARD: usize = 64
const PAGE: u64 = 65536

/*
 * Tables that kernels fill at first use take no room in the module: they lie below its data, which asconfig.json puts
 * at 8192 (`memoryBase`).
 */
/** [256, 16] u8, see compact.ts. */
export const SHUFFLES: usize = 1024
/** [7, 4] f32, see levels.ts. */
export const THRESHOLDS: usize = 5120
/** [64, 2] f64, see levels.ts. */
export const CENTER_PAIRS: usize = 5248
/** [16] f32, see levels.ts. */
export const SIGNED_CENTERS: usize = 6272

let top: usize = (__heap_base + 15) & ~15
/** Everything from here on has never been used and is still zero. */
let untouched: usize = top
let firstFree: usize = 0
let scratchAt: usize = 0
let scratchBytes: usize = 0

/** Throws in the host, which imports it as `arena.refuse`: there are not `bytes` bytes of scratch. */
declare function refuse(bytes: usize): void

function size(block: usize): usize {
  return load<usize>(block)
}

function next(block: usize): usize {
  return load<usize>(block, 4)
}

function setSize(block: usize, value: usize): void {
  store<usize>(block, value)
}

/** Links `block` behind `previous`, or at the front. */
function link(previous: usize, block: usize): void {
  if (previous) store<usize>(previous, block, 4)
  else firstFree = block
}

/** Zeroed memory, 16-byte aligned; 0 where neither the free list nor growth has it. */
export function allocate(bytes: usize): usize {
  const given = take(bytes)
  if (given || !scratchAt) return given
  // No kernel runs now: scratch that splits the room is taken anew when one does.
  dropScratch()
  return take(bytes)
}

/** First fit. */
function take(bytes: usize): usize {
  const wanted = ((<u64>bytes + 15) & ~15) + HEADER
  if (wanted > 0xffff0000) return 0
  const need = <usize>wanted
  let previous: usize = 0
  let block = firstFree
  while (block && size(block) < need) {
    previous = block
    block = next(block)
  }
  if (!block) {
    if (!growTo(<u64>top + wanted)) return 0
    block = top
    top += need
    setSize(block, need)
  } else if (size(block) - need > HEADER) {
    const rest = block + need
    setSize(rest, size(block) - need)
    store<usize>(rest, next(block), 4)
    link(previous, rest)
    setSize(block, need)
  } else link(previous, next(block))
  const end = block + size(block)
  const dirty = min<usize>(end, untouched)
  if (dirty > block + HEADER) memory.fill(block + HEADER, 0, dirty - block - HEADER)
  untouched = max<usize>(untouched, end)
  return block + HEADER
}

/** Gives back what `allocate` gave. */
export function release(payload: usize): void {
  const block = payload - HEADER
  let previous: usize = 0
  let after = firstFree
  while (after && after < block) {
    previous = after
    after = next(after)
  }
  if (after && block + size(block) === after) {
    setSize(block, size(block) + size(after))
    after = next(after)
  }
  store<usize>(block, after, 4)
  if (previous && previous + size(previous) === block) {
    setSize(previous, size(previous) + size(block))
    store<usize>(previous, after, 4)
    lower(previous)
  } else {
    link(previous, block)
    lower(block)
  }
}

/** A free block that ends at `top` goes back to the untouched end. */
function lower(block: usize): void {
  if (block + size(block) !== top) return
  let previous: usize = 0
  let at = firstFree
  while (at !== block) {
    previous = at
    at = next(at)
  }
  link(previous, 0)
  top = block
}

function growTo(end: u64): bool {
  const have = <u64>memory.size() * PAGE
  if (end + GUARD <= have) return true
  return memory.grow(<i32>((end + GUARD - have + PAGE - 1) / PAGE)) >= 0
}

/** Working memory of the running kernel, 16-byte aligned, not zeroed: one block, kept, and grown when too small. */
export function scratch(bytes: usize): usize {
  if (bytes <= scratchBytes) return scratchAt
  if (scratchAt) dropScratch()
  scratchAt = take(bytes)
  if (!scratchAt) refuse(bytes)
  scratchBytes = bytes
  return scratchAt
}

function dropScratch(): void {
  release(scratchAt)
  scratchAt = 0
  scratchBytes = 0
}
