import type { Backend, Buf } from '../../sdk/backend.ts'
import { type Rotation, type Summary, summaryParts } from '../../sdk/codec/codec.ts'
import { seededSigns } from '../../sdk/codec/signs.ts'
import { paddedDim } from '../../sdk/shape.ts'
import type { TiledKeys } from './wasm-data.ts'

export const K = 100

/** One KV head's keys on a backend, and the calls that retrieve from them. */
export interface Bed {
  readonly count: number
  readonly keys: Buf
  ask(queries: Float32Array): void
  /** Exact scores of all keys. */
  scan(): void
  /** The exact scan and its own top-100. */
  exact(): void
  /** Query, coarse scores, selection, estimates, top-100. */
  retrieve(coarse: 'signs' | 'collision', beta: number): void
  /** Encodes `count` keys again, from position `from` on. */
  encode(from: number, count: number): void
  /** Bytes of the codes a key. */
  readonly bytesPerKey: number
  top(): Promise<Uint32Array>
  free(): void
}

/** Uploads and encodes `count` keys. */
export async function makeBed(backend: Backend, source: TiledKeys, count: number): Promise<Bed> {
  const { d, group } = source
  const D = paddedDim(d)
  const parts = summaryParts(1, count, D, backend.layout)
  const sizes = {
    keys: count * d * 4,
    signs: parts.signs,
    magnitudes: parts.magnitudes,
    weights: parts.weights,
    scales: parts.scales,
    counts: parts.counts,
    diagonal: D,
    queries: group * d * 4,
    chosen: d * 4,
    y: D * 4,
    unit: 4,
    t: D,
    scores: count * 2,
    ids: count * 4,
    estimates: count * 4,
    topIds: K * 4,
    topValues: K * 4,
  }
  const names = Object.keys(sizes) as (keyof typeof sizes)[]
  const buffers = await backend.alloc(names.map((label) => ({ label, bytes: sizes[label] })))
  const b = Object.fromEntries(names.map((name, i) => [name, buffers[i]])) as Record<keyof typeof sizes, Buf>
  const write = (buf: Buf, at: number, data: ArrayBufferView) =>
    backend.write(buf, at, new Uint8Array(data.buffer, data.byteOffset, data.byteLength))
  for (let n = 0; n < count; n += source.tile) {
    const tile = source.keys(n / source.tile)
    write(b.keys, n * d * 4, tile.subarray(0, Math.min(source.tile, count - n) * d))
  }
  write(b.diagonal, 0, seededSigns(42, D))
  const rotation: Rotation = { d, D, signs: b.diagonal }
  const rows = { buf: b.keys, dtype: 'f32', cap: count, d } as const
  const { signs, magnitudes, weights, scales, counts } = b
  const summary: Summary = { cap: count, D, layout: backend.layout, signs, magnitudes, weights, scales, counts }
  const shape = { heads: 1, choosers: 1 }
  const ask = () =>
    backend.query([{ queries: b.queries, ...shape, group, rotation, chosen: b.chosen, y: b.y, scales: b.unit, t: b.t }])
  const topk = (C: number, ids: Buf | null) =>
    backend.topk([{ values: b.estimates, ids, heads: 1, count: C, k: K, topIds: b.topIds, topValues: b.topValues }])
  const scan = () => {
    const source = { rows, base: 0, chosen: b.chosen, scale: 1 }
    backend.rerank([{ source, ...shape, ids: null, count, estimates: b.estimates }])
  }
  backend.encode([{ keys: rows, heads: 1, from: 0, count, rotation, summary, at: 0 }])
  return {
    count,
    keys: b.keys,
    bytesPerKey: (parts.signs + parts.magnitudes + parts.weights + parts.scales) / count,
    ask(queries) {
      write(b.queries, 0, queries)
      ask()
    },
    scan,
    exact() {
      scan()
      topk(count, null)
    },
    retrieve(coarse, beta) {
      const { scores, t, y, ids } = b
      const candidates = Math.min(count, Math.max(K, Math.ceil(beta * count)))
      const one = { summary, ...shape, count, scores, stride: count }
      ask()
      if (coarse === 'signs') backend.coarseSigns([{ ...one, t, normWeighted: false }])
      else backend.coarseCollision([{ ...one, y, rho: 0.2 }])
      const range = coarse === 'signs' ? { lo: -15 * D, hi: 15 * D, step: 2 } : { lo: 0, hi: (6 * D) / 8, step: 1 }
      backend.select([{ scores, stride: count, heads: 1, count, candidates, ...range, ids }])
      const source = { codes: summary, y, scales: b.unit }
      backend.rerank([{ source, ...shape, ids, count: candidates, estimates: b.estimates }])
      topk(candidates, ids)
    },
    encode(from, some) {
      backend.encode([
        { keys: rows, heads: 1, from, count: some, rotation, summary: { ...summary, counts: undefined }, at: from },
      ])
    },
    async top() {
      return new Uint32Array((await backend.read(b.topIds, 0, K * 4)).buffer)
    },
    free: () => backend.free(buffers),
  }
}
