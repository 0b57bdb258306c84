import { bf16ToF32 } from 'pariskv'
import type { Capture } from './capture.ts'

/** Plain float64 attention over a capture: what the demo compares with. */
export class Exact {
  private readonly keys: Float64Array
  private readonly values: Float64Array

  constructor(private readonly capture: Capture) {
    this.keys = Float64Array.from(capture.keys, bf16ToF32)
    this.values = Float64Array.from(capture.values, bf16ToF32)
  }

  /** Query head g at captured position p. */
  private query(p: number, g: number): Float64Array {
    const { headDim: d, positions, queries } = this.capture
    const at = (g * positions + p) * d
    return Float64Array.from(queries.subarray(at, at + d), bf16ToF32)
  }

  private product(q: Float64Array, n: number): number {
    let sum = 0
    for (let j = 0; j < q.length; j++) sum += q[j] * this.keys[n * q.length + j]
    return sum
  }

  /** The k positions in [from, to) whose keys have the largest product with the group's mean query. */
  topK(p: number, from: number, to: number, k: number): Set<number> {
    const { queryHeads, headDim } = this.capture
    const mean = new Float64Array(headDim)
    for (let g = 0; g < queryHeads; g++) this.query(p, g).forEach((v, j) => (mean[j] += v / queryHeads))
    const scores = Array.from({ length: to - from }, (_, i) => [from + i, this.product(mean, from + i)])
    return new Set(
      scores
        .sort((a, b) => b[1] - a[1])
        .slice(0, k)
        .map(([n]) => n),
    )
  }

  /**
   * Softmax attention of the p-th position over `positions`, every query head for itself.
   * @returns probabilities [Hq][positions] and output [Hq · d]
   */
  attend(p: number, positions: readonly number[]): { probabilities: Float64Array[]; output: Float64Array } {
    const { queryHeads, headDim: d } = this.capture
    const output = new Float64Array(queryHeads * d)
    const probabilities = Array.from({ length: queryHeads }, (_, g) => {
      const q = this.query(p, g)
      const scores = Float64Array.from(positions, (n) => this.product(q, n) / Math.sqrt(d))
      const max = scores.reduce((a, b) => Math.max(a, b))
      const weights = scores.map((s) => Math.exp(s - max))
      const sum = weights.reduce((a, b) => a + b)
      positions.forEach((n, i) => {
        for (let j = 0; j < d; j++) output[g * d + j] += (weights[i] / sum) * this.values[n * d + j]
      })
      return weights.map((w) => w / sum)
    })
    return { probabilities, output }
  }
}
