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
  private held = { at: new Float64Array(0), keys: new Uint8Array(0), values: new Uint8Array(0) }

  /** Room for so many rows of `row` bytes; what it held is gone where it grows. */
  take(rows: number, row: number) {
    if (this.held.at.length < rows)
      this.held = { at: new Float64Array(rows), keys: new Uint8Array(rows * row), values: new Uint8Array(rows * row) }
    return this.held
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
  private readonly hot: HotRows[]

  /** @param keys and values: [H, sink + window + hot, d] */
  constructor(
    readonly shared: Offload,
    private readonly keys: Rows,
    private readonly values: Rows,
    private pages: LayerPages,
  ) {
    this.base = shared.plan.sink
    this.hot = Array.from({ length: pages.heads }, () => new HotRows(shared.plan.hot))
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

  /** Writes tokens [from, to) behind the first `length`, which are mended. @throws ParisError `out_of_memory` where pages run out */
  async append(length: number, keys: Tensor, values: Tensor, from: number, to: number): Promise<void> {
    const { backend, plan, tier } = this.shared
    const count = to - from
    await this.pages.reserve(tier, length + count)
    if (length + count - this.base > plan.window) await this.fill(this.windowAt(length), length)
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

  /** Makes the window hold [base, length). */
  private async fill(base: number, length: number): Promise<void> {
    this.base = Number.MAX_SAFE_INTEGER
    await this.load(base, length, this.keys, this.values, this.shared.plan.sink)
    this.base = base
  }

  /** Loads everything that steps at this length read in place, from pages that were written apart. */
  async restore(length: number): Promise<void> {
    for (const head of this.hot) head.clear()
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
    if (shrunk) for (const head of this.hot) head.clear()
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
   * @returns [H, k] places on the device, in the order of the ids
   */
  async fetch(ids: Uint32Array, k: number, zone: number): Promise<Uint32Array<ArrayBuffer>> {
    const { plan, tier, seen } = this.shared
    const { heads, row } = this.pages
    const places = new Uint32Array(heads * k)
    const steps = this.hot.map((hot, h) => {
      const own = Int32Array.from(ids.subarray(h * k, (h + 1) * k))
      own.forEach((id, i) => {
        if (zone + id < this.base) return
        places[h * k + i] = this.rowOf(zone + id)
        own[i] = -1
      })
      return { hot, own, step: hot.plan(own) }
    })
    const total = steps.reduce((sum, { step }) => sum + step.fetched.length, 0)
    const host = this.room(total)
    let n = 0
    for (const [h, { own, step }] of steps.entries()) {
      for (const i of step.fetched) host.at[n++] = this.pages.at(tier, h, zone + own[i])
      step.slots.forEach((slot, i) => {
        if (slot >= 0) places[h * k + i] = plan.sink + plan.window + slot
      })
    }
    if (total > 0) await tier.gather(host.at, total, row, host.keys, host.values)
    n = 0
    for (const [h, { hot, own, step }] of steps.entries()) {
      this.writeSlots(h, step.cursor, n, step.fetched.length)
      n += step.fetched.length
      hot.commit(own, step)
      seen.misses += step.fetched.length
      seen.hits += k - step.fetched.length
    }
    return places
  }

  /** Writes gathered rows [n, n + count) to slots from `slot` on, in a circle. */
  private writeSlots(h: number, slot: number, n: number, count: number): void {
    if (count === 0) return
    const { backend, plan } = this.shared
    const { row } = this.pages
    const { keys, values } = this.room(n + count)
    const some = Math.min(count, plan.hot - slot)
    const place = (h * this.keys.cap + plan.sink + plan.window + slot) * row
    backend.write(this.keys.buf, place, keys.subarray(n * row, (n + some) * row))
    backend.write(this.values.buf, place, values.subarray(n * row, (n + some) * row))
    if (some < count) this.writeSlots(h, 0, n + some, count - some)
  }

  private room(rows: number) {
    return this.shared.host.take(rows, this.pages.row)
  }
}
