import type { Backend, Buf } from '../backend.ts'
import { makeRotation, type Rotation, type Rows } from '../codec/codec.ts'
import { seededSigns } from '../codec/signs.ts'
import type { SessionConfig } from '../config.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import { rowBytes, storedTensor, type Tensor } from '../input.ts'
import type { EncodeJob } from '../kernels/encode.ts'
import { type LayerCache, segmentsOf } from './layer.ts'
import { LayerPages } from './layer-pages.ts'
import { HostRoom, type Offload, OffloadedLayer } from './offload.ts'
import { type OffloadPlan, offloadPlan } from './offload-plan.ts'
import type { PageTier } from './pages.ts'
import { resetSummary, type SummaryPart, summaryCapacity, summaryPlan } from './summary.ts'
import { type Zones, zonesOf } from './zones.ts'

/** How a cache is laid out. */
export interface CacheOptions {
  readonly store: Dtype
  /** Where the retrieval zone's rows live on the host. Without it every row is on the device. */
  readonly tier?: PageTier
  /** The tier stays that of another cache, whatever happens here, until that one says otherwise: see `Cache.keepTier`. */
  readonly lent?: boolean
}

/** Keys and values of all layers of one sequence, by position, with the codes of their retrieval zones. */
export class Cache {
  private buffers: Buf[] = []
  private readonly layers: LayerCache[] = []
  /** Present where rows are offloaded. */
  offload: Offload | undefined

  private constructor(
    readonly backend: Backend,
    readonly config: SessionConfig,
    readonly store: Dtype,
    readonly rotation: Rotation,
  ) {}

  /**
   * Takes all memory of the device at once, or none.
   * @param options tier: an empty one, or a fork of one whose pages `adopt` then takes over; it is the cache's from here on
   * @throws ParisError `out_of_memory`
   */
  static async open(backend: Backend, config: SessionConfig, { store, tier, lent }: CacheOptions): Promise<Cache> {
    const { layers, kvHeads, headDim, paddedDim } = config.shape
    const plan = summaryPlan(config, backend.layout)
    const lay = tier && offloadPlan(config, store)
    const cap = lay ? lay.sink + lay.window : config.capacity
    const hot = lay?.hot ?? 0
    const row = kvHeads * headDim * dtypeBytes(store)
    const requests = [{ label: 'signs', bytes: paddedDim }]
    for (let l = 0; l < layers; l++) {
      for (const part of ['keys', 'values']) requests.push({ label: `${part} ${l}`, bytes: (cap + hot) * row })
      for (const [part, size] of plan) requests.push({ label: `${part} ${l}`, bytes: Math.max(4, size) })
    }
    if (lay) for (const part of ['keys', 'values']) requests.push({ label: `staged ${part}`, bytes: lay.staging * row })
    const buffers = await backend.alloc(requests).catch(async (error) => {
      if (!lent) await tier?.dispose()
      throw error
    })
    const cache = new Cache(backend, config, store, makeRotation(headDim, buffers[0]))
    cache.buffers = buffers
    backend.write(buffers[0], 0, new Uint8Array(seededSigns(config.seed, paddedDim).buffer))
    if (lay) cache.offload = { ...cache.share(lay, tier, buffers.slice(-2)), lent: lent ?? false }
    const perLayer = 2 + plan.length
    for (let l = 0; l < layers; l++) cache.addLayer(buffers.slice(1 + l * perLayer, 1 + (l + 1) * perLayer), cap, plan)
    return cache
  }

  private share(plan: OffloadPlan, tier: PageTier, [keys, values]: readonly Buf[]): Omit<Offload, 'lent'> {
    const { backend, config } = this
    const staging = { keys: this.rows(keys, plan.staging), values: this.rows(values, plan.staging) }
    return { backend, config, plan, tier, staging, host: new HostRoom(tier), seen: { hits: 0, misses: 0 } }
  }

  private rows(buf: Buf, cap: number): Rows {
    return { buf, dtype: this.store, cap, d: this.config.shape.headDim }
  }

  private addLayer(buffers: readonly Buf[], cap: number, plan: readonly [SummaryPart, number][]): void {
    const { shape } = this.config
    const [keys, values] = [this.rows(buffers[0], cap), this.rows(buffers[1], cap)]
    const parts = Object.fromEntries(plan.map(([part], i) => [part, buffers[2 + i]])) as Record<SummaryPart, Buf>
    const summary = { cap: summaryCapacity(this.config), D: shape.paddedDim, layout: this.backend.layout, ...parts }
    resetSummary(this.backend, summary, shape.kvHeads)
    const pages = () => new LayerPages(shape.kvHeads, this.rowBytes, this.offload?.plan.shift ?? 0)
    const offload = this.offload && new OffloadedLayer(this.offload, keys, values, pages())
    this.layers.push({ keys, values, summary, offload, length: 0, maxKey: 0, loose: false, stale: false })
  }

  /** Bytes of a key, and of a value. */
  private get rowBytes(): number {
    return this.config.shape.headDim * dtypeBytes(this.store)
  }

  layer(index: number): LayerCache {
    return this.layers[index]
  }

  zones(index: number): Zones {
    return zonesOf(this.layers[index].length, this.config.policy)
  }

  /** Tokens that one `append` takes at most. */
  get chunk(): number {
    return this.offload?.plan.chunk ?? Number.POSITIVE_INFINITY
  }

  /**
   * Writes tokens [from, to) of checked tensors behind a layer's end; the length moves on.
   * @returns the job that encodes what crossed into the retrieval zone, if anything did. The caller runs it next.
   * @throws ParisError `out_of_memory` where the host has no page left; `truncate` to the length before mends what was begun
   */
  async append(index: number, keys: Tensor, values: Tensor, from: number, to: number): Promise<EncodeJob | undefined> {
    const layer = this.layers[index]
    await this.mend(index)
    if (layer.offload) await layer.offload.append(layer.length, keys, values, from, to)
    else this.writeTokens(layer, keys, values, from, to)
    layer.maxKey = Math.max(layer.maxKey, keys.max)
    return this.advance(index, to - from)
  }

  private writeTokens(layer: LayerCache, keys: Tensor, values: Tensor, from: number, to: number): void {
    for (let h = 0; h < this.config.shape.kvHeads; h++) {
      const at = (h * this.config.capacity + layer.length) * this.rowBytes
      this.backend.write(layer.keys.buf, at, rowBytes(keys, h, from, to, this.store))
      this.backend.write(layer.values.buf, at, rowBytes(values, h, from, to, this.store))
    }
  }

  /** Counts rows in that were written behind a layer's end. @returns as `append` */
  advance(index: number, tokens: number): EncodeJob | undefined {
    const job = this.crossing(index, tokens)
    this.layers[index].length += tokens
    return job
  }

  /** The job that encodes what further tokens let cross into the retrieval zone, if anything does. */
  crossing(index: number, tokens: number): EncodeJob | undefined {
    const layer = this.layers[index]
    const before = this.zones(index).retrieval
    const { retrieval } = zonesOf(layer.length + tokens, this.config.policy)
    if (retrieval === before) return undefined
    const from = this.config.policy.sink + before
    return this.encodeJob(layer, layer.keys, layer.offload?.rowOf(from) ?? from, retrieval - before, before)
  }

  private encodeJob({ summary }: LayerCache, keys: Rows, from: number, count: number, at: number): EncodeJob {
    return { keys, heads: this.config.shape.kvHeads, from, count, rotation: this.rotation, summary, at }
  }

  /** Encodes the whole zone of a layer whose summary is empty. */
  private async encodeZone(index: number): Promise<void> {
    const layer = this.layers[index]
    const { sink, retrieval } = this.zones(index)
    if (retrieval === 0) return
    for await (const { keys, at, from, count } of segmentsOf(layer, sink, sink + retrieval))
      this.backend.encode([this.encodeJob(layer, keys, at, count, from - sink)])
  }

  /**
   * Forgets all tokens from `length` on. What accumulates over keys (counts, norm exponent) is made anew: at once, or by
   * the next `mend` where that reads pages, so that no page that cannot be read stands in the way.
   */
  async truncate(index: number, length: number): Promise<void> {
    const layer = this.layers[index]
    if (length > layer.length) return
    const before = this.zones(index).retrieval
    layer.loose ||= length < layer.length
    layer.length = length
    const shrunk = this.zones(index).retrieval < before
    layer.offload?.truncate(length, shrunk)
    const { counts, norms } = layer.summary
    layer.stale ||= shrunk && (counts ?? norms) !== undefined
    if (!layer.offload) await this.mend(index)
  }

  /**
   * Brings in and makes anew what a truncation left open; before whatever reads rows in place, counts or norms. Where it
   * fails it is left open as before.
   */
  async mend(index: number): Promise<void> {
    const layer = this.layers[index]
    await layer.offload?.mend(layer.length)
    if (!layer.stale) return
    resetSummary(this.backend, layer.summary, this.config.shape.kvHeads)
    await this.encodeZone(index)
    layer.stale = false
  }

  /** The largest |k| of a layer; reads its rows only where a truncation left that open. */
  async largestKey(index: number): Promise<number> {
    const layer = this.layers[index]
    if (!layer.loose) return layer.maxKey
    const { kvHeads, headDim: d } = this.config.shape
    let max = 0
    for (let h = 0; h < kvHeads; h++)
      for (let from = 0; from < layer.length; from += 4096) {
        const tokens = Math.min(4096, layer.length - from)
        const { buffer } = (await this.readRows(index, 'keys', h, from, from + tokens)).slice()
        max = Math.max(max, storedTensor(buffer, this.store, { where: 'cache', name: 'keys', heads: 1, d, tokens }).max)
      }
    layer.maxKey = max
    layer.loose = false
    return max
  }

  /** Keys or values [from, to) of head h as stored, row by row. */
  async readRows(
    index: number,
    part: 'keys' | 'values',
    h: number,
    from: number,
    to: number,
  ): Promise<Uint8Array<ArrayBufferLike>> {
    const layer = this.layers[index]
    if (layer.offload) return layer.offload.read(part, h, from, to)
    const { rowBytes } = this
    return this.backend.read(layer[part].buf, (h * this.config.capacity + from) * rowBytes, (to - from) * rowBytes)
  }

  /** The inverse, into an empty layer; `settle` then lets them be seen. */
  async writeRows(index: number, part: 'keys' | 'values', h: number, from: number, bytes: Uint8Array): Promise<void> {
    const layer = this.layers[index]
    if (layer.offload) await layer.offload.write(part, h, from, bytes)
    else this.backend.write(layer[part].buf, (h * this.config.capacity + from) * this.rowBytes, bytes)
  }

  /** Lets rows that `writeRows` wrote be seen. */
  async settle(index: number, length: number): Promise<void> {
    this.layers[index].length = length
    await this.layers[index].offload?.restore(length)
  }

  /**
   * A copy that shares nothing.
   * @param config of the copy: the same but for its policy, whose zones are encoded anew where it differs
   * @param options of the copy, of the same store; a tier is a fork of this cache's own where it has one
   * @throws ParisError `out_of_memory`
   */
  async fork(config: SessionConfig, options: CacheOptions, backend = this.backend): Promise<Cache> {
    const copy = await Cache.open(backend, config, options)
    try {
      const same = config === this.config && backend === this.backend
      if (same) for (const index of this.layers.keys()) await this.mend(index)
      if (same) this.buffers.forEach((buf, i) => backend.copy(buf, 0, copy.buffers[i], 0, buf.bytes))
      for (const [i, { length, maxKey, loose }] of this.layers.entries()) {
        if (!same || this.offload) await this.copyRows(copy, i)
        Object.assign(copy.layers[i], { length, maxKey, loose })
        if (!same) await copy.encodeZone(i)
      }
      return copy
    } catch (error) {
      await copy.dispose()
      throw error
    }
  }

  private async copyRows(copy: Cache, index: number): Promise<void> {
    const [from, to] = [this.layers[index], copy.layers[index]]
    if (!from.offload && !to.offload && this.backend === copy.backend) {
      this.backend.copy(from.keys.buf, 0, to.keys.buf, 0, from.keys.buf.bytes)
      this.backend.copy(from.values.buf, 0, to.values.buf, 0, from.values.buf.bytes)
      return
    }
    if (from.offload && to.offload) to.offload.adopt(from.offload)
    else
      for (const part of ['keys', 'values'] as const)
        for (let h = 0; h < this.config.shape.kvHeads; h++)
          for (let at = 0; at < from.length; at += 4096) {
            const end = Math.min(from.length, at + 4096)
            await copy.writeRows(index, part, h, at, await this.readRows(index, part, h, at, end))
          }
    await copy.settle(index, from.length)
  }

  /** Takes the tier over from the cache that lent it. */
  keepTier(from: Cache): void {
    if (!this.offload?.lent || !from.offload) return
    this.offload.lent = false
    from.offload.lent = true
  }

  /** Frees the host's pages too, on a lost device as well. */
  async dispose(): Promise<void> {
    const { buffers } = this
    this.buffers = []
    try {
      if (this.offload && !this.offload.lent) await this.offload.tier.dispose()
    } finally {
      this.backend.free(buffers)
    }
  }
}
