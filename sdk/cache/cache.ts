import type { Backend, Buf } from '../backend.ts'
import { makeRotation, type Rotation, type Rows, type Summary } from '../codec/codec.ts'
import { seededSigns } from '../codec/signs.ts'
import type { SessionConfig } from '../config.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import { ParisError } from '../errors.ts'
import { rowBytes, storedTensor, type Tensor } from '../input.ts'
import type { EncodeJob } from '../kernels/encode.ts'
import { resetSummary, type SummaryPart, summaryCapacity, summaryPlan } from './summary.ts'
import { type Zones, zonesOf } from './zones.ts'

/** One layer's rows, summary and length. Owned by a `Cache`. */
export interface LayerCache {
  readonly keys: Rows
  readonly values: Rows
  readonly summary: Summary
  length: number
  /** At least the largest |k| held, but for those that came in GPUBuffers: with the queries' it bounds the products. */
  maxKey: number
  /** Whether a truncation may have left `maxKey` above that. */
  loose: boolean
}

/** Bytes that a configuration takes, before anything is allocated. */
export function cacheBytes(config: SessionConfig, layout: Backend['layout'], store: Dtype) {
  const { layers, kvHeads, headDim } = config.shape
  const rows = 2 * layers * kvHeads * config.capacity * headDim * dtypeBytes(store)
  const summary = layers * summaryPlan(config, layout).reduce((sum, [, bytes]) => sum + bytes, 0)
  return { rows, summary }
}

/** Keys and values of all layers of one sequence, by position, with the codes of their retrieval zones. */
export class Cache {
  private buffers: Buf[] = []
  private readonly layers: LayerCache[] = []

  private constructor(
    readonly backend: Backend,
    readonly config: SessionConfig,
    readonly store: Dtype,
    readonly rotation: Rotation,
  ) {}

  /** Takes all memory at once, or none. @throws ParisError `out_of_memory` */
  static async open(backend: Backend, config: SessionConfig, store: Dtype): Promise<Cache> {
    const { layers, kvHeads, headDim, paddedDim } = config.shape
    const plan = summaryPlan(config, backend.layout)
    const bytes = kvHeads * config.capacity * headDim * dtypeBytes(store)
    const requests = [{ label: 'signs', bytes: paddedDim }]
    for (let l = 0; l < layers; l++) {
      requests.push({ label: `keys ${l}`, bytes }, { label: `values ${l}`, bytes })
      for (const [part, size] of plan) requests.push({ label: `${part} ${l}`, bytes: Math.max(4, size) })
    }
    const buffers = await backend.alloc(requests)
    const cache = new Cache(backend, config, store, makeRotation(headDim, buffers[0]))
    cache.buffers = buffers
    backend.write(buffers[0], 0, new Uint8Array(seededSigns(config.seed, paddedDim).buffer))
    const perLayer = 2 + plan.length
    for (let l = 0; l < layers; l++) cache.addLayer(buffers.slice(1 + l * perLayer, 1 + (l + 1) * perLayer), plan)
    return cache
  }

  private addLayer(buffers: readonly Buf[], plan: readonly [SummaryPart, number][]): void {
    const { shape, capacity: cap } = this.config
    const rows = (buf: Buf): Rows => ({ buf, dtype: this.store, cap, d: shape.headDim })
    const parts = Object.fromEntries(plan.map(([part], i) => [part, buffers[2 + i]])) as Record<SummaryPart, Buf>
    const summary = { cap: summaryCapacity(this.config), D: shape.paddedDim, layout: this.backend.layout, ...parts }
    resetSummary(this.backend, summary, shape.kvHeads)
    this.layers.push({ keys: rows(buffers[0]), values: rows(buffers[1]), summary, length: 0, maxKey: 0, loose: false })
  }

  layer(index: number): LayerCache {
    return this.layers[index]
  }

  zones(index: number): Zones {
    return zonesOf(this.layers[index].length, this.config.policy)
  }

  /**
   * Writes tokens [from, to) of checked tensors behind a layer's end; the length moves on.
   * @returns the job that encodes what crossed into the retrieval zone, if anything did. The caller runs it next.
   */
  append(index: number, keys: Tensor, values: Tensor, from: number, to: number): EncodeJob | undefined {
    const layer = this.layers[index]
    const { kvHeads, headDim } = this.config.shape
    const row = headDim * dtypeBytes(this.store)
    for (let h = 0; h < kvHeads; h++) {
      const at = (h * this.config.capacity + layer.length) * row
      this.backend.write(layer.keys.buf, at, rowBytes(keys, h, from, to, this.store))
      this.backend.write(layer.values.buf, at, rowBytes(values, h, from, to, this.store))
    }
    layer.maxKey = Math.max(layer.maxKey, keys.max)
    return this.advance(index, to - from)
  }

  /** Counts rows in that were written behind a layer's end. @returns as `append` */
  advance(index: number, tokens: number): EncodeJob | undefined {
    const before = this.zones(index).retrieval
    this.layers[index].length += tokens
    return this.encodeJob(index, before)
  }

  /** The job for summary indices [at, present zone), or nothing where that is empty. */
  private encodeJob(index: number, at: number): EncodeJob | undefined {
    const { keys, summary } = this.layers[index]
    const { sink, retrieval } = this.zones(index)
    if (retrieval === at) return undefined
    const heads = this.config.shape.kvHeads
    return { keys, heads, from: sink + at, count: retrieval - at, rotation: this.rotation, summary, at }
  }

  /** Forgets all tokens from `length` on. What accumulates over keys (counts, norm exponent) is made anew. */
  truncate(index: number, length: number): void {
    const layer = this.layers[index]
    if (length >= layer.length) return
    const before = this.zones(index).retrieval
    layer.length = length
    layer.loose = true
    const { counts, norms } = layer.summary
    if (this.zones(index).retrieval === before || (!counts && !norms)) return
    resetSummary(this.backend, layer.summary, this.config.shape.kvHeads)
    const job = this.encodeJob(index, 0)
    if (job) this.backend.encode([job])
  }

  /** The largest |k| of a layer; reads its rows only where a truncation left that open. */
  async largestKey(index: number): Promise<number> {
    const layer = this.layers[index]
    if (!layer.loose) return layer.maxKey
    const { kvHeads, headDim: d } = this.config.shape
    const row = d * dtypeBytes(this.store)
    let max = 0
    for (let h = 0; h < kvHeads; h++)
      for (let from = 0; from < layer.length; from += 4096) {
        const tokens = Math.min(4096, layer.length - from)
        const at = (h * this.config.capacity + from) * row
        const { buffer } = (await this.backend.read(layer.keys.buf, at, tokens * row)).slice()
        max = Math.max(max, storedTensor(buffer, this.store, { where: 'cache', name: 'keys', heads: 1, d, tokens }).max)
      }
    layer.maxKey = max
    layer.loose = false
    return max
  }

  /**
   * A copy that shares nothing.
   * @param config of the copy: the same but for its policy, whose zones are encoded anew where it differs
   * @throws ParisError `out_of_memory`
   */
  async fork(config = this.config): Promise<Cache> {
    const copy = await Cache.open(this.backend, config, this.store)
    const same = config === this.config
    if (same) this.buffers.forEach((buf, i) => this.backend.copy(buf, 0, copy.buffers[i], 0, buf.bytes))
    this.layers.forEach(({ keys, values, length, maxKey, loose }, i) => {
      const layer = Object.assign(copy.layers[i], { length, maxKey, loose })
      if (same) return
      this.backend.copy(keys.buf, 0, layer.keys.buf, 0, keys.buf.bytes)
      this.backend.copy(values.buf, 0, layer.values.buf, 0, values.buf.bytes)
      const job = copy.encodeJob(i, 0)
      if (job) this.backend.encode([job])
    })
    return copy
  }

  dispose(): void {
    this.backend.free(this.buffers)
    this.buffers = []
  }
}

/** The largest |v| that a session takes, so that sums over a whole context stay finite in f32. */
export function largestValue(capacity: number): number {
  return 3.4e38 / capacity
}

/** @throws ParisError `capacity`, before anything is written */
export function checkRoom(length: number, tokens: number, capacity: number, where: string): void {
  if (length + tokens <= capacity) return
  throw new ParisError('capacity', {
    where,
    got: `${tokens} tokens on top of ${length}`,
    want: `at most ${capacity} in all`,
    fix: 'Open a session with a larger capacity, or truncate this one; it still holds what it held.',
  })
}
