import { zonesOf } from '../../../sdk/cache/zones.ts'
import { bf16ToF32, f32ToBf16 } from '../../../sdk/dtype.ts'
import { dot, type Finder, type Found, Growing, type Index } from './finder.ts'
import type { Rows } from './rows.ts'

/** Zones of a lane: as a policy's, with every token moving on as it comes. */
export interface LaneZones {
  readonly sink: number
  readonly local: number
}

/** One KV head: its rows, f32 as stored in bf16, and what the method keeps of those in the zone. */
interface Head {
  readonly keys: Growing<Float32Array>
  readonly values: Growing<Float32Array>
  readonly index: Index
}

/** A sequence whose attention goes by another method: sink ∪ found ∪ local, on rows of its own. */
export class Lane {
  private constructor(
    private readonly heads: readonly (readonly Head[])[],
    private readonly d: number,
    private readonly zones: LaneZones,
    readonly k: number,
    private attended = { rows: 0, times: 0 },
  ) {}

  /** Learns a prompt. */
  static over(finder: Finder, rows: Rows, d: number, zones: LaneZones, k: number): Lane {
    const heads = rows.map((layer) =>
      layer.map(({ keys, values }) => {
        const n = keys.length / d
        const { sink, retrieval } = zonesOf(n, { ...zones, update: 1 })
        const index = finder.index(keys.subarray(sink * d, (sink + retrieval) * d), d)
        return { keys: new Growing(keys.slice(), d, n), values: new Growing(values.slice(), d, n), index }
      }),
    )
    return new Lane(heads, d, zones, k)
  }

  /** A copy for another K. */
  fork(k: number): Lane {
    const copy = ({ keys, values, index }: Head) => ({ keys: keys.fork(), values: values.fork(), index: index.fork() })
    return new Lane(
      this.heads.map((layer) => layer.map(copy)),
      this.d,
      this.zones,
      k,
    )
  }

  /** Tokens of the last layer: it is the last one that a step reaches. */
  get length(): number {
    return this.heads.at(-1)![0].keys.count
  }

  /** Rows that a query head attended to, mean of all steps and layers. */
  get meanRows(): number {
    return this.attended.rows / this.attended.times
  }

  /** One token of one layer, [H, d] each. */
  append(layer: number, keys: Float32Array, values: Float32Array): void {
    const { d, zones } = this
    const stored = (row: Float32Array) => row.map((x) => bf16ToF32(f32ToBf16(x)))
    for (const [h, head] of this.heads[layer].entries()) {
      head.keys.push(stored(keys.subarray(h * d, (h + 1) * d)))
      head.values.push(stored(values.subarray(h * d, (h + 1) * d)))
      const { sink, retrieval } = zonesOf(head.keys.count, { ...zones, update: 1 })
      const last = sink + retrieval - 1
      if (retrieval > 0) head.index.add(head.keys.data.slice(last * d, (last + 1) * d))
    }
  }

  /** @param queries [Hq, d] @returns [Hq, d] */
  attend(layer: number, queries: Float32Array): Float32Array {
    const { d, zones, k } = this
    const heads = this.heads[layer]
    const group = queries.length / d / heads.length
    const output = new Float32Array(queries.length)
    for (const [h, head] of heads.entries()) {
      const n = head.keys.count
      const { sink, retrieval: zone } = zonesOf(n, { ...zones, update: 1 })
      const own = queries.subarray(h * group * d, (h + 1) * group * d)
      const keys = head.keys.data.subarray(sink * d, (sink + zone) * d)
      const found = head.index.find({ queries: own, d, keys, zone, k: Math.min(k, zone) })
      for (let g = 0; g < group; g++) {
        const part = found[Math.min(g, found.length - 1)]
        this.attended.rows += n - zone + part.ids.length
        this.attended.times++
        output.set(attendRows(own.subarray(g * d, (g + 1) * d), head, part, sink, zone), (h * group + g) * d)
      }
    }
    return output
  }
}

/** Softmax attention of one query over [0, sink) ∪ found ∪ [sink + zone, n). */
function attendRows(query: Float32Array, head: Head, { ids, offsets }: Found, sink: number, zone: number) {
  const d = query.length
  const { data, count } = head.keys
  const rest = count - zone
  const positions = Uint32Array.from({ length: rest + ids.length }, (_, i) => {
    if (i >= rest) return sink + ids[i - rest]
    return i < sink ? i : i + zone
  })
  const scale = 1 / Math.sqrt(d)
  const logits = Float32Array.from(positions, (p, i) => {
    return dot(data, p * d, query, 0, d) * scale + (i >= rest ? (offsets?.[i - rest] ?? 0) : 0)
  })
  const max = logits.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY)
  const output = new Float32Array(d)
  let sum = 0
  for (const [i, p] of positions.entries()) {
    const weight = Math.exp(logits[i] - max)
    sum += weight
    for (let j = 0; j < d; j++) output[j] += weight * head.values.data[p * d + j]
  }
  return output.map((x) => x / sum)
}
