const ROUNDS = 10

/** What k-means learns from: dimensions [from, from + width) of keys [n, d]. */
export interface Lesson {
  readonly keys: Float32Array
  readonly d: number
  readonly from: number
  readonly width: number
  readonly centroids: number
  readonly next: () => number
}

/** Centroids [centroids, width] by Lloyd's rounds from different keys; one that lost its keys moves to another key. */
export function kMeans({ keys, d, from, width, centroids, next }: Lesson): Float32Array {
  const count = keys.length / d
  const order = Array.from({ length: count }, (_, n) => n)
  for (let i = 0; i < Math.min(centroids, count); i++) {
    const j = i + Math.floor(next() * (count - i))
    ;[order[i], order[j]] = [order[j], order[i]]
  }
  const at = (n: number) => n * d + from
  const means = new Float32Array(centroids * width)
  for (let c = 0; c < centroids; c++)
    means.set(keys.subarray(at(order[c % count]), at(order[c % count]) + width), c * width)
  for (let round = 0; round < ROUNDS; round++) {
    const sums = new Float64Array(centroids * width)
    const sizes = new Uint32Array(centroids)
    for (let n = 0; n < count; n++) {
      const c = nearest(means, keys, at(n), width)
      sizes[c]++
      for (let j = 0; j < width; j++) sums[c * width + j] += keys[at(n) + j]
    }
    for (let c = 0; c < centroids; c++) {
      const lost = at(Math.floor(next() * count))
      for (let j = 0; j < width; j++)
        means[c * width + j] = sizes[c] > 0 ? sums[c * width + j] / sizes[c] : keys[lost + j]
    }
  }
  return means
}

/** The centroid nearest to keys[at..]. */
export function nearest(centroids: Float32Array, keys: Float32Array, at: number, width: number): number {
  let [best, least] = [0, Number.POSITIVE_INFINITY]
  for (let c = 0; c * width < centroids.length; c++) {
    let distance = 0
    const from = c * width
    for (let j = 0; j < width; j++) {
      const gap = keys[at + j] - centroids[from + j]
      distance += gap * gap
    }
    if (distance < least) [best, least] = [c, distance]
  }
  return best
}
