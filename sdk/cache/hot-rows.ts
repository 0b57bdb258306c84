/** What a step does with a cache of hot rows; holds until the next `plan`. */
export interface HotPlan {
  /** By asked row: its slot once the missing ones have been written; −1 for those that need none. */
  readonly slots: Int32Array
  /** Asked rows, by place in the list, to be written to consecutive slots from `cursor` on, modulo their number. */
  readonly fetched: Int32Array
  readonly cursor: number
}

/** Entries of a bucket, side by side in memory; a quarter of all is in use at most. */
const BUCKET = 8
/** Numbers of a bucket: of each entry the row, and how many had been written before it. */
const WIDTH = 2 * BUCKET

/** Found, but in the way of what is fetched. */
const IN_THE_WAY = -2

/**
 * Which rows are in which slots of the device's cache of hot rows. Slots are filled in a circle, so that what a step
 * fetches lies side by side, and the n-th row ever written is there until the (n + size)-th comes; a row of the step that
 * stands in the way is fetched anew with the others, which keeps rows in use: the one who asks often is never the oldest.
 */
export class HotRows {
  /** By hash of the row, bucket by bucket; an entry that was written too long ago counts for nothing. */
  private readonly table: Float64Array
  private readonly mask: number
  /** Rows written so far, and more by `size` at each `clear`. */
  private written: number
  /** How many had been written when the present turn of the circle began, as of the latest `plan`. */
  private turn = 0
  /** Working memory of `plan`. */
  private slots = new Int32Array(0)
  private fetched = new Int32Array(0)

  constructor(readonly size: number) {
    const buckets = 2 ** Math.ceil(Math.log2(Math.max(1, (4 * size) / BUCKET)))
    this.table = new Float64Array(WIDTH * buckets).fill(-1)
    this.mask = buckets - 1
    this.written = size
  }

  /**
   * Looks rows up; nothing changes until `commit`.
   * @param rows distinct whole numbers, the first `count` of them, no more than there are slots; below 0: need no slot
   */
  plan(rows: Float64Array, count: number): HotPlan {
    if (this.slots.length < count) {
      this.slots = new Int32Array(count)
      this.fetched = new Int32Array(count)
    }
    const { slots, fetched, size } = this
    const cursor = this.written % size
    this.turn = this.written - cursor
    let n = 0
    for (let i = 0; i < count; i++) {
      slots[i] = rows[i] < 0 ? -1 : this.find(rows[i])
      if (rows[i] >= 0 && slots[i] < 0) fetched[n++] = i
    }
    for (let before = -1; before < n; ) {
      before = n
      for (let i = 0; i < count; i++) {
        if (slots[i] < 0 || distance(slots[i], cursor, size) >= before) continue
        slots[i] = IN_THE_WAY
        fetched[n++] = i
      }
    }
    for (let j = 0; j < n; j++) slots[fetched[j]] = cursor + j < size ? cursor + j : cursor + j - size
    return { slots: slots.subarray(0, count), fetched: fetched.subarray(0, n), cursor }
  }

  /** Counts the fetched rows of the latest plan in. */
  commit(rows: Float64Array, { fetched }: HotPlan): void {
    const before = this.written
    this.written += fetched.length
    for (let j = 0; j < fetched.length; j++) this.note(rows[fetched[j]], before + j)
  }

  /** Forgets every row. */
  clear(): void {
    this.written += this.size
  }

  /** The slot of a row, −1 where it is in none or has been lost sight of. */
  private find(row: number): number {
    const { table, written, size, turn } = this
    const from = this.bucket(row)
    for (let at = from; at < from + WIDTH; at += 2) {
      if (table[at] !== row || table[at + 1] < written - size) continue
      const slot = table[at + 1] - turn
      return slot < 0 ? slot + size : slot
    }
    return -1
  }

  /** Where a bucket is full, its first entry gives way: that row is fetched again one day. */
  private note(row: number, nth: number): void {
    const { table, written, size } = this
    const from = this.bucket(row)
    let at = from
    while (at < from + WIDTH && table[at + 1] >= written - size) at += 2
    if (at === from + WIDTH) at = from
    table[at] = row
    table[at + 1] = nth
  }

  /** Where the bucket of a row begins. */
  private bucket(row: number): number {
    return ((Math.imul(row, 0x9e3779b1) >>> 7) & this.mask) * WIDTH
  }
}

/** Slots from the cursor on to this one. */
function distance(slot: number, cursor: number, size: number): number {
  return slot < cursor ? slot - cursor + size : slot - cursor
}
