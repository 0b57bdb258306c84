import { best, dot, type Finder, type Index, meanQuery, type Search } from './finder.ts'

const index: Index = {
  add() {},
  find(search: Search) {
    const { keys, zone, d, k } = search
    const query = meanQuery(search)
    const scores = Float32Array.from({ length: zone }, (_, n) => dot(keys, n * d, query, 0, d))
    return [{ ids: best(scores, zone, k) }]
  },
  fork: () => index,
}

/** The keys with the largest products with the group's mean query: what every search by that query hopes for. */
export const exactTop: Finder = { name: 'exact top-K', bytesPerKey: (d) => 2 * d, index: () => index }
