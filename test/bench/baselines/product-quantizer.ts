import { random } from '../../support/inputs.ts'
import { best, dot, type Finder, Growing, type Index, meanQuery, type Search } from './finder.ts'
import { kMeans, nearest } from './k-means.ts'

/** Codebooks [parts, centroids, width], and the code of every key, a byte a part. */
export class QuantizerIndex implements Index {
  constructor(
    private readonly codebooks: readonly Float32Array[],
    private readonly width: number,
    private readonly codes: Growing<Uint8Array>,
  ) {}

  /** Codes follow the codebooks as they were learned. */
  add(key: Float32Array): void {
    const { width, codebooks } = this
    this.codes.push(codebooks.map((centroids, m) => nearest(centroids, key, m * width, width)))
  }

  find(search: Search) {
    const query = meanQuery(search)
    const { width, codebooks } = this
    const parts = codebooks.length
    const tables = codebooks.map((centroids, m) =>
      Float32Array.from({ length: centroids.length / width }, (_, c) =>
        dot(centroids, c * width, query, m * width, width),
      ),
    )
    const scores = new Float32Array(search.zone)
    const { data } = this.codes
    for (let n = 0; n < search.zone; n++) {
      let sum = 0
      for (let m = 0; m < parts; m++) sum += tables[m][data[n * parts + m]]
      scores[n] = sum
    }
    return [{ ids: best(scores, search.zone, search.k) }]
  }

  fork(): QuantizerIndex {
    return new QuantizerIndex(this.codebooks, this.width, this.codes.fork())
  }

  /** The same codebooks for other keys [n, d]. */
  over(keys: Float32Array): QuantizerIndex {
    const { codebooks, width } = this
    const fresh = new QuantizerIndex(codebooks, width, new Growing(new Uint8Array(0), codebooks.length, 0))
    const d = codebooks.length * width
    for (let at = 0; at < keys.length; at += d) fresh.add(keys.subarray(at, at + d))
    return fresh
  }
}

/** A finder whose index can be laid over other keys. */
export interface Quantizer extends Finder {
  index(keys: Float32Array, d: number): QuantizerIndex
}

/** PQCache: codebooks learned on the prompt's keys; what is generated is coded by them as they are. */
export function productQuantizer(parts: number, centroids: number): Quantizer {
  return {
    name: `PQCache ${parts}×${centroids}`,
    bytesPerKey: () => (parts * Math.log2(centroids)) / 8,
    index(keys, d) {
      const width = d / parts
      const next = random(7)
      const codebooks = Array.from({ length: parts }, (_, m) =>
        kMeans({ keys, d, from: m * width, width, centroids, next }),
      )
      return new QuantizerIndex(codebooks, width, new Growing(new Uint8Array(0), parts, 0)).over(keys)
    },
  }
}
