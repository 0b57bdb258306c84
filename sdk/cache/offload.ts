import type { Backend } from '../backend.ts'
import type { Rows } from '../codec/codec.ts'
import type { SessionConfig } from '../config.ts'
import { rowBytes, type Tensor } from '../input.ts'
import { HotRows } from './hot-rows.ts'
import type { LayerPages } from './layer-pages.ts'
import type { OffloadPlan } from './offload-plan.ts'
import type { PageTier } from './pages.ts'
import { isDense, zonesOf } from './zones.ts'

/** What the layers of an offloaded cache share: its pages, one staging, and the counts of its cache of hot rows. */
export interface Offload {
  readonly backend: Backend
  readonly config: SessionConfig
  readonly plan: OffloadPlan
  readonly tier: PageTier
  /** Whether the tier is another cache's to dispose of. */
  lent: boolean
  /** [H, plan.staging, d] on the device. */
  readonly staging: { readonly keys: Rows; readonly values: Rows }
  readonly host: HostRoom
  /** Retrieved rows that a step found on the device, and those that were sent to it. */
  readonly seen: { hits: number; misses: number }
}

/** Working memory of the host for rows on their way to the device; grows to the largest fetch. Used by one call at a time. */
export class HostRoom {
  private held: { readonly at: Float64Array; readonly keys: Uint8Array; readonly values: Uint8Array } = {
    at: new Float64Array(0),
    keys: new Uint8Array(0),
    values: new Uint8Array(0),
  }
  private numbers = { asked: new Float64Array(0), places: new Uint32Array(0) }

  constructor(private readonly tier: PageTier) {}

  /** Room for so many rows of `row` bytes; what it held is gone where it grows. */
  take(rows: number, row: number) {
    if (this.held.at.length >= rows) return this.held
    const room = (bytes: number) => this.tier.room?.(bytes) ?? new Uint8Array(bytes)
    this.held = { at: new Float64Array(rows), keys: room(rows * row), values: room(rows * row) }
    return this.held
  }

  /** Room for what a step asks of so many rows. */
  asking(rows: number) {
    if (this.numbers.asked.length < rows)
      this.numbers = { asked: new Float64Array(rows), places: new Uint32Array(rows) }
    return this.numbers
  }
}

/** Rows [from, from + count) of a layer as they lie on the device, at place `at`. */
export interface Segment {
  readonly keys: Rows
  readonly values: Rows
  readonly from: number
  readonly count: number
  readonly at: number
}

/** Rows a head that pass through the host's working memory together. */
const STEP = 512

/** Where a layer's rows are, and the only one to move them. Every row is in the pages from its append on. */
export class OffloadedLayer {
  /** Position of the window's first row; beyond any length while the window does not hold what it should. */
  private base: number
  private readonly hot: HotRows

  /** @param keys and values: [H, sink + window, d], and behind them [H · hot, d], the hot rows of all heads */
  constructor(
    readonly shared: Offload,
    private readonly keys: Rows,
    private readonly values: Rows,
    private pages: LayerPages,
  ) {
    this.base = shared.plan.sink
    this.hot = new HotRows(pages.heads * shared.plan.hot)
  }

  /** Takes over the pages of another layer, of whose tier this one's is a fork; `restore` follows. */
  adopt(other: OffloadedLayer): void {
    this.pages = other.pages.copy()
  }

  /** The place on the device of a position of the sink or the window. */
  rowOf(position: number): number {
    const { sink } = this.shared.plan
    return position < sink ? position : sink + position - this.base
  }

  /**
   * Pages for `count` tokens behind the first `length`, and places for them in the window, which moves where it is full.
   * @throws ParisError `out_of_memory` where pages run out
   */
  async makeRoom(length: number, count: number): Promise<void> {
    await this.pages.reserve(this.shared.tier, length + count)
    if (!this.hasPlaces(length, count)) await this.fill(this.windowAt(length), length)
  }

  /** Whether `count` tokens behind the first `length` can be written now, and a step then finds all it reads in place. */
  hasRoom(length: number, count: number): boolean {
    const inPlace = this.base <= this.windowAt(length) && this.hasPlaces(length, count)
    return inPlace && this.pages.holds(length + count)
  }

  private hasPlaces(length: number, count: number): boolean {
    return length + count - this.base <= this.shared.plan.window
  }

  /** Writes tokens [from, to) behind the first `length`, which are mended. @throws ParisError `out_of_memory` where pages run out */
  async append(length: number, keys: Tensor, values: Tensor, from: number, to: number): Promise<void> {
    const { backend, tier } = this.shared
    const count = to - from
    await this.makeRoom(length, count)
    const { heads, row } = this.pages
    const at = new Float64Array(count)
    for (let h = 0; h < heads; h++) {
      const k = rowBytes(keys, h, from, to, this.keys.dtype)
      const v = rowBytes(values, h, from, to, this.keys.dtype)
      this.pages.run(tier, h, length, count, at)
      await tier.scatter(at, count, row, k, v)
      const place = (h * this.keys.cap + this.rowOf(length)) * row
      backend.write(this.keys.buf, place, k)
      backend.write(this.values.buf, place, v)
    }
  }

  /** Takes the latest token, which the device has in its place, into the pages. @param keys and values: [H, d] as stored */
  async keep(position: number, keys: Uint8Array, values: Uint8Array): Promise<void> {
    const { heads, row } = this.pages
    const at = Float64Array.from({ length: heads }, (_, h) => this.pages.at(this.shared.tier, h, position))
    await this.shared.tier.scatter(at, heads, row, keys, values)
  }

  /** Makes the window hold [base, length). */
  private async fill(base: number, length: number): Promise<void> {
    this.base = Number.MAX_SAFE_INTEGER
    await this.load(base, length, this.keys, this.values, this.shared.plan.sink)
    this.base = base
  }

  /** Loads everything that steps at this length read in place, from pages that were written apart. */
  async restore(length: number): Promise<void> {
    this.hot.clear()
    await this.load(0, Math.min(this.shared.plan.sink, length), this.keys, this.values, 0)
    await this.fill(this.windowAt(length), length)
  }

  /** Where the window begins at the latest. */
  private windowAt(length: number): number {
    const { config, plan } = this.shared
    if (isDense(length, config)) return plan.sink
    const { sink, retrieval } = zonesOf(length, config.policy)
    return sink + retrieval
  }

  /** @param shrunk whether the retrieval zone is smaller than before: rows beyond it are no longer its own */
  truncate(length: number, shrunk: boolean): void {
    this.pages.truncate(this.shared.tier, length)
    if (shrunk) this.hot.clear()
  }

  /** Lets the window hold what steps at this length read in place: a truncation, or a page not read, may have left less. */
  async mend(length: number): Promise<void> {
    const base = this.windowAt(length)
    if (this.base > base) await this.fill(base, length)
  }

  /** Keys or values [from, to) of one head out of the pages, in memory of their own: may run beside other calls. */
  async read(part: 'keys' | 'values', h: number, from: number, to: number): Promise<Uint8Array<ArrayBuffer>> {
    const count = to - from
    const { row } = this.pages
    const at = new Float64Array(count)
    const rows = { keys: new Uint8Array(count * row), values: new Uint8Array(count * row) }
    this.pages.run(this.shared.tier, h, from, count, at)
    await this.shared.tier.gather(at, count, row, rows.keys, rows.values)
    return rows[part]
  }

  /** Writes keys or values from `from` on of one head to the pages alone; `restore` then brings in what steps read. */
  async write(part: 'keys' | 'values', h: number, from: number, bytes: Uint8Array): Promise<void> {
    const { tier } = this.shared
    const count = bytes.length / this.pages.row
    await this.pages.reserve(tier, from + count)
    const at = new Float64Array(count)
    this.pages.run(tier, h, from, count, at)
    const [keys, values] = part === 'keys' ? [bytes, undefined] : [undefined, bytes]
    await tier.scatter(at, count, this.pages.row, keys, values)
  }

  /** Copies positions [from, to) of all heads to the device, to places from `at` on. */
  private async load(from: number, to: number, keys: Rows, values: Rows, at: number): Promise<void> {
    const { backend, tier } = this.shared
    const { heads, row } = this.pages
    const host = this.room(Math.min(STEP, to - from))
    for (let h = 0; h < heads; h++)
      for (let n = from; n < to; n += STEP) {
        const count = Math.min(STEP, to - n)
        this.pages.run(tier, h, n, count, host.at)
        await tier.gather(host.at, count, row, host.keys, host.values)
        const place = (h * keys.cap + at + n - from) * row
        backend.write(keys.buf, place, host.keys.subarray(0, count * row))
        backend.write(values.buf, place, host.values.subarray(0, count * row))
      }
  }

  /** Rows [from, to) in order, as pieces on the device; a piece holds only until the next one is asked for. */
  async *segments(from: number, to: number): AsyncGenerator<Segment> {
    const { staging, plan } = this.shared
    if (from >= this.base || this.base === plan.sink) {
      yield { keys: this.keys, values: this.values, from, count: to - from, at: this.rowOf(from) }
      return
    }
    for (let n = from; n < to; n += plan.staging) {
      const count = Math.min(plan.staging, to - n)
      await this.load(n, n + count, staging.keys, staging.values, 0)
      yield { ...staging, from: n, count, at: 0 }
    }
  }

  /** The same for those that are in pages alone, between sink and window. */
  async *between(): AsyncGenerator<Segment> {
    const { sink } = this.shared.plan
    if (this.base > sink) yield* this.segments(sink, this.base)
  }

  /**
   * Brings the rows of one step onto the device.
   * @param ids [H, k] distinct indices in the zone
   * @param zone position of index 0
   * @returns [H, k] places on the device, counted from the first of their head, in the order of the ids; those of hot rows
   * lie beyond every head's own. Holds until the next call.
   */
  async fetch(ids: Uint32Array, k: number, zone: number): Promise<Uint32Array> {
    const { tier, seen, host } = this.shared
    const { heads } = this.pages
    const n = heads * k
    const { asked, places } = host.asking(n)
    for (let h = 0; h < heads; h++)
      for (let i = h * k; i < (h + 1) * k; i++) {
        const resident = zone + ids[i] >= this.base
        places[i] = resident ? this.rowOf(zone + ids[i]) : 0
        asked[i] = resident ? -1 : ids[i] * heads + h
      }
    const step = this.hot.plan(asked, n)
    const count = step.fetched.length
    if (count > 0) {
      const { at, keys, values } = this.room(count)
      for (let j = 0; j < count; j++) {
        const i = step.fetched[j]
        at[j] = this.pages.at(tier, Math.floor(i / k), zone + ids[i])
      }
      await tier.gather(at, count, this.pages.row, keys, values)
      this.writeSlots(step.cursor, 0, count)
    }
    this.hot.commit(asked, step)
    seen.misses += count
    seen.hits += n - count
    for (let h = 0; h < heads; h++)
      for (let i = h * k; i < (h + 1) * k; i++)
        if (asked[i] >= 0) places[i] = (heads - h) * this.keys.cap + step.slots[i]
    return places.subarray(0, n)
  }

  /** Writes gathered rows [n, n + count) to slots from `slot` on, in a circle. */
  private writeSlots(slot: number, n: number, count: number): void {
    const { backend } = this.shared
    const { row, heads } = this.pages
    const { keys, values } = this.room(n + count)
    const some = Math.min(count, this.hot.size - slot)
    const place = (heads * this.keys.cap + slot) * row
    backend.write(this.keys.buf, place, keys.subarray(n * row, (n + some) * row))
    backend.write(this.values.buf, place, values.subarray(n * row, (n + some) * row))
    if (some < count) this.writeSlots(0, n + some, count - some)
  }

  private room(rows: number) {
    return this.shared.host.take(rows, this.pages.row)
  }
}
