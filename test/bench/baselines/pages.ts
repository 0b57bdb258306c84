import { best, type Finder, Growing, type Index, meanQuery, type Search } from './finder.ts'

const PAGE = 16

/** Least and largest of every coordinate of a page: [pages, 2, d]. */
class PageIndex implements Index {
  constructor(
    private readonly d: number,
    private readonly bounds: Growing<Float32Array>,
    private count: number,
  ) {}

  add(key: Float32Array): void {
    const { d, bounds } = this
    if (this.count % PAGE === 0) bounds.push([...key, ...key])
    else {
      const { data } = bounds
      const at = (bounds.count - 1) * 2 * d
      for (let j = 0; j < d; j++) {
        data[at + j] = Math.min(data[at + j], key[j])
        data[at + d + j] = Math.max(data[at + d + j], key[j])
      }
    }
    this.count++
  }

  find(search: Search) {
    const { d, zone, k } = search
    const query = meanQuery(search)
    const { data, count } = this.bounds
    const scores = new Float32Array(count)
    for (let p = 0; p < count; p++) {
      const at = p * 2 * d
      let bound = 0
      for (let j = 0; j < d; j++) bound += query[j] * data[query[j] > 0 ? at + d + j : at + j]
      scores[p] = bound
    }
    const pages = best(scores, count, Math.ceil(k / PAGE))
    const ids = [...pages].flatMap((p) =>
      Array.from({ length: Math.min(PAGE, zone - p * PAGE) }, (_, i) => p * PAGE + i),
    )
    return [{ ids: Uint32Array.from(ids) }]
  }

  fork(): Index {
    return new PageIndex(this.d, this.bounds.fork(), this.count)
  }
}

/** Quest: whole pages of 16 keys, by the largest product that a page's bounds allow; K is rounded up to pages. */
export const quest: Finder = {
  name: 'Quest',
  bytesPerKey: (d) => (2 * d * 2) / PAGE,
  index(keys, d) {
    const index = new PageIndex(d, new Growing(new Float32Array(0), 2 * d, 0), 0)
    for (let at = 0; at < keys.length; at += d) index.add(keys.subarray(at, at + d))
    return index
  },
}
