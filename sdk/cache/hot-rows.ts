/** What a step does with one head's cache of hot rows. */
export interface HotPlan {
  /** By retrieved row: its slot once the missing ones have been written. */
  readonly slots: Int32Array
  /** Retrieved rows, by place in the list, to be written to consecutive slots from `cursor` on, modulo their number. */
  readonly fetched: readonly number[]
  readonly cursor: number
}

/** Entries of the table that are looked at: a quarter of them is in use at most. */
const PROBES = 8

/**
 * Which rows of one head are in which slots of the device's cache of hot rows. Slots are filled in a circle, so that
 * what a step fetches lies side by side; a row of the step that stands in the way is fetched anew with the others, which
 * keeps rows in use: the one who asks often is never the oldest.
 */
export class HotRows {
  /** The row of each slot, −1 for none: what counts. */
  private readonly held: Int32Array
  /** By hash: a row and the slot that it was once written to. An entry is right where the slot still holds the row. */
  private readonly ids: Int32Array
  private readonly slotOf: Int32Array
  private cursor = 0

  constructor(readonly slots: number) {
    const size = 2 ** Math.ceil(Math.log2(Math.max(1, 4 * slots)))
    this.held = new Int32Array(slots).fill(-1)
    this.ids = new Int32Array(size).fill(-1)
    this.slotOf = new Int32Array(size)
  }

  /**
   * Looks rows up; nothing changes until `commit`.
   * @param ids distinct indices in the zone, no more than there are slots; below 0 are rows that need no slot
   */
  plan(ids: ArrayLike<number>): HotPlan {
    const { cursor } = this
    const slots = new Int32Array(ids.length).fill(-1)
    const fetched: number[] = []
    let hits: number[] = []
    for (let i = 0; i < ids.length; i++) {
      if (ids[i] < 0) continue
      const slot = this.find(ids[i])
      if (slot < 0) fetched.push(i)
      else {
        slots[i] = slot
        hits.push(i)
      }
    }
    for (let before = -1; before < fetched.length; ) {
      before = fetched.length
      const overwritten = (i: number) => this.distance(slots[i]) < before
      fetched.push(...hits.filter(overwritten))
      hits = hits.filter((i) => !overwritten(i))
    }
    fetched.forEach((i, j) => {
      slots[i] = (cursor + j) % this.slots
    })
    return { slots, fetched, cursor }
  }

  /** Counts the fetched rows of a plan in, which has just been made. */
  commit(ids: ArrayLike<number>, { slots, fetched, cursor }: HotPlan): void {
    for (const i of fetched) this.held[slots[i]] = ids[i]
    for (const i of fetched) this.note(ids[i], slots[i])
    this.cursor = (cursor + fetched.length) % Math.max(1, this.slots)
  }

  /** Forgets every row. */
  clear(): void {
    this.held.fill(-1)
    this.ids.fill(-1)
    this.cursor = 0
  }

  /** The slot of a row, −1 where it is in none or has been lost sight of. */
  private find(id: number): number {
    const home = this.home(id)
    for (let n = 0; n < PROBES; n++) {
      const at = (home + n) & (this.ids.length - 1)
      if (this.ids[at] === id && this.held[this.slotOf[at]] === id) return this.slotOf[at]
    }
    return -1
  }

  /** Where no entry near its home is free or out of date, one that is right gives way: its row is fetched again one day. */
  private note(id: number, slot: number): void {
    const home = this.home(id)
    let to = home
    for (let n = 0; n < PROBES; n++) {
      const at = (home + n) & (this.ids.length - 1)
      if (this.ids[at] >= 0 && this.ids[at] !== id && this.held[this.slotOf[at]] === this.ids[at]) continue
      to = at
      break
    }
    this.ids[to] = id
    this.slotOf[to] = slot
  }

  private home(id: number): number {
    return (Math.imul(id, 0x9e3779b1) >>> 7) & (this.ids.length - 1)
  }

  /** Slots from the cursor on to this one. */
  private distance(slot: number): number {
    return (slot - this.cursor + this.slots) % this.slots
  }
}
