/** One search among the zone's keys of one KV head. */
export interface Search {
  /** [G, d] of the head's group. */
  readonly queries: Float32Array
  readonly d: number
  /** [zone, d]. */
  readonly keys: Float32Array
  readonly zone: number
  /** Rows that a query head may attend to, at most `zone`. */
  readonly k: number
}

/** What a query head attends to of the zone. */
export interface Found {
  /** Indices in the zone, none twice. */
  readonly ids: Uint32Array
  /** Added to the logits of `ids`: the negative log of the chance that each was found, where that was by chance. */
  readonly offsets?: Float32Array
}

/** What a method keeps of one KV head's keys. */
export interface Index {
  /** The next key [d] has moved into the zone. */
  add(key: Float32Array): void
  /** One choice for the whole group, or one for each of its query heads. */
  find(search: Search): readonly Found[]
  /** A copy that shares nothing that changes. */
  fork(): Index
}

/** A way to choose keys, as others do it. */
export interface Finder {
  readonly name: string
  /** Bytes that a search reads or keeps a key. */
  bytesPerKey(d: number): number
  /** Learns or hashes a prompt's zone, keys [n, d]. */
  index(keys: Float32Array, d: number): Index
}

/** The mean of a group's queries, [d]. */
export function meanQuery({ queries, d }: Pick<Search, 'queries' | 'd'>): Float32Array {
  const mean = new Float32Array(d)
  for (let i = 0; i < queries.length; i++) mean[i % d] += queries[i]
  return mean.map((x) => (x * d) / queries.length)
}

/** Inner product of a[at..] and b[from..] over d elements. */
export function dot(a: Float32Array, at: number, b: Float32Array, from: number, d: number): number {
  let [even, odd, j] = [0, 0, 0]
  for (; j + 1 < d; j += 2) {
    even += a[at + j] * b[from + j]
    odd += a[at + j + 1] * b[from + j + 1]
  }
  return j < d ? even + odd + a[at + j] * b[from + j] : even + odd
}

/** Indices of the k largest of the first `count` scores, ascending; ties to the lower. */
export function best(scores: Float32Array, count: number, k: number): Uint32Array {
  const take = Math.min(k, count)
  const ids = new Uint32Array(take)
  if (take === 0) return ids
  const least = scores.slice(0, count).sort()[count - take]
  let above = 0
  for (let n = 0; n < count; n++) if (scores[n] > least) above++
  let ties = take - above
  let at = 0
  for (let n = 0; n < count && at < take; n++)
    if (scores[n] > least || (scores[n] === least && ties-- > 0)) ids[at++] = n
  return ids
}

/** Rows [n, d] that grow one at a time. */
export class Growing<T extends Float32Array | Uint8Array | Uint16Array> {
  constructor(
    public data: T,
    private readonly width: number,
    public count: number,
  ) {}

  push(row: ArrayLike<number>): void {
    const end = (this.count + 1) * this.width
    if (end > this.data.length) {
      const Type = this.data.constructor as new (length: number) => T
      const wider = new Type(Math.ceil(end * 1.25))
      wider.set(this.data)
      this.data = wider
    }
    this.data.set(row, this.count * this.width)
    this.count++
  }

  fork(): Growing<T> {
    return new Growing(this.data.slice() as T, this.width, this.count)
  }
}
