import { gaussians, random } from '../../support/inputs.ts'
import { dot, type Finder, type Found, type Index, type Search } from './finder.ts'

const TABLES = 150
const MOST_BITS = 16

/**
 * Hash tables of centred keys: entries word << 16 | key in ascending order, so that the keys which share the first b of
 * their 16 sign bits lie together for every b. Holds 65,536 keys.
 */
class HashIndex implements Index {
  constructor(
    private readonly planes: Float32Array,
    private readonly centre: Float32Array,
    private readonly tables: Uint32Array[],
    private count: number,
  ) {}

  add(key: Float32Array): void {
    const { count, tables } = this
    const words = this.signature(key.map((x, j) => x - this.centre[j]))
    for (let t = 0; t < TABLES; t++) {
      if (count === tables[t].length) {
        const wider = new Uint32Array(Math.ceil((count + 64) * 1.1))
        wider.set(tables[t])
        tables[t] = wider
      }
      const entry = ((words[t] << 16) | count) >>> 0
      const at = lowerBound(tables[t], count, entry)
      tables[t].copyWithin(at + 1, at, count)
      tables[t][at] = entry
    }
    this.count++
  }

  /** Each query head draws for itself. */
  find(search: Search): Found[] {
    const { queries, d } = search
    return Array.from({ length: queries.length / d }, (_, g) => this.draw(queries.subarray(g * d, (g + 1) * d), search))
  }

  /**
   * The keys that share their first b bits with the query in two tables or more, for the fewest bits that leave at most
   * k of them, each weighted by the inverse of its chance.
   */
  private draw(query: Float32Array, { keys, d, k }: Search): Found {
    const { bits, sample } = this.sample(this.signature(query), k)
    const length = Math.sqrt(dot(query, 0, query, 0, d))
    const centred = new Float32Array(d)
    const ids = Uint32Array.from(sample)
    const offsets = Float32Array.from(ids, (n) => {
      for (let j = 0; j < d; j++) centred[j] = keys[n * d + j] - this.centre[j]
      const norm = Math.sqrt(dot(centred, 0, centred, 0, d))
      const cosine = dot(centred, 0, query, 0, d) / Math.max(1e-20, norm * length)
      const same = (1 - Math.acos(Math.max(-1, Math.min(1, cosine))) / Math.PI) ** bits
      const twice = 1 - (1 - same) ** TABLES - TABLES * same * (1 - same) ** (TABLES - 1)
      return -Math.log(Math.max(1e-12, twice))
    })
    return { ids, offsets }
  }

  /** Widens every table's run of matching entries bit by bit, as long as the sample fits. */
  private sample(own: Uint16Array, k: number): { bits: number; sample: number[] } {
    const { tables, count } = this
    const hits = new Uint16Array(count)
    const from = tables.map((table, t) => lowerBound(table, count, (own[t] << 16) >>> 0))
    const to = [...from]
    const sample: number[] = []
    for (let bits = MOST_BITS; bits > 0; bits--) {
      const before = sample.length
      const shift = 32 - bits
      for (let t = 0; t < TABLES; t++) {
        const table = tables[t]
        const word = own[t] >>> (MOST_BITS - bits)
        while (to[t] < count && table[to[t]] >>> shift === word)
          if (++hits[table[to[t]++] & 0xffff] === 2) sample.push(table[to[t] - 1] & 0xffff)
        while (from[t] > 0 && table[from[t] - 1] >>> shift === word)
          if (++hits[table[--from[t]] & 0xffff] === 2) sample.push(table[from[t]] & 0xffff)
      }
      if (sample.length <= k) continue
      return before > 0 ? { bits: bits + 1, sample: sample.slice(0, before) } : { bits, sample: sample.slice(0, k) }
    }
    return { bits: 1, sample }
  }

  private signature(x: Float32Array): Uint16Array {
    const d = x.length
    return Uint16Array.from({ length: TABLES }, (_, t) => {
      let word = 0
      for (let b = 0; b < MOST_BITS; b++)
        word = (word << 1) | (dot(this.planes, (t * MOST_BITS + b) * d, x, 0, d) >= 0 ? 1 : 0)
      return word
    })
  }

  fork(): Index {
    return new HashIndex(
      this.planes,
      this.centre,
      this.tables.map((table) => table.slice()),
      this.count,
    )
  }
}

/** The first of the first `count` ascending entries that is not below `entry`. */
function lowerBound(table: Uint32Array, count: number, entry: number): number {
  let [from, to] = [0, count]
  while (from < to) {
    const middle = (from + to) >> 1
    if (table[middle] < entry) from = middle + 1
    else to = middle
  }
  return from
}

/** MagicPIG: keys sampled by locality-sensitive hashing, 150 tables, weighted by the inverse of their chance. */
export const magicPig: Finder = {
  name: 'MagicPIG',
  bytesPerKey: () => TABLES * 4,
  index(keys, d) {
    const count = keys.length / d
    const centre = new Float32Array(d)
    for (let i = 0; i < keys.length; i++) centre[i % d] += keys[i] / count
    const planes = gaussians(random(11), TABLES * MOST_BITS * d)
    const index = new HashIndex(
      planes,
      centre,
      Array.from({ length: TABLES }, () => new Uint32Array(count + 256)),
      0,
    )
    for (let at = 0; at < keys.length; at += d) index.add(keys.subarray(at, at + d))
    return index
  },
}
