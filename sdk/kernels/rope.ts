import type { Buf, Bytes } from '../bytes.ts'
import { type RmsNorm, rmsFactor } from './norm.ts'

/** Swaps the two outer axes and, where asked, normalizes each row and turns it by the position of its token. */
export interface RopeJob<B extends Buf = Buf> {
  /** [outer, inner, d] f32. */
  readonly input: B
  readonly outer: number
  readonly inner: number
  /** A multiple of 8. */
  readonly d: number
  /** Out: [inner, outer, d] f32, never the input. */
  readonly output: B
  /** RMS-normalizes each row before it is turned: the norms of queries and keys. d is at most 256. */
  readonly norm?: RmsNorm<B>
  /**
   * [T, d] f32: the cosines of a token's d/2 angles, then their sines. Pairs are (j, j + d/2):
   * y_j = x_j · cos_j − x_{j+d/2} · sin_j and y_{j+d/2} = x_{j+d/2} · cos_j + x_j · sin_j.
   * Without it nothing is turned: without `norm` too a plain transposition, equal to the bit.
   */
  readonly table?: B
  /** Which axis of the input counts the tokens of the table. */
  readonly tokensAxis: 'outer' | 'inner'
}

/** Reference: sums and products in f64. */
export function rope(job: RopeJob<Bytes>): void {
  const { outer, inner, d, norm, table, tokensAxis } = job
  for (let o = 0; o < outer; o++)
    for (let i = 0; i < inner; i++) {
      const from = (o * inner + i) * d
      const to = (i * outer + o) * d
      if (!table && !norm) {
        job.output.u32.set(job.input.u32.subarray(from, from + d), to)
        continue
      }
      const row = norm ? normalized(job.input.f32, from, d, norm) : job.input.f32.subarray(from, from + d)
      if (table) turn(row, table.f32, (tokensAxis === 'outer' ? o : i) * d, job.output.f32, to)
      else job.output.f32.set(row, to)
    }
}

function normalized(x: Float32Array, from: number, d: number, { weight, epsilon }: RmsNorm<Bytes>): Float64Array {
  const factor = rmsFactor(x, from, d, epsilon)
  return Float64Array.from({ length: d }, (_, j) => x[from + j] * factor * weight.f32[j])
}

function turn(x: Float32Array | Float64Array, table: Float32Array, at: number, y: Float32Array, to: number): void {
  const half = x.length / 2
  for (let j = 0; j < half; j++) {
    const [cos, sin] = [table[at + j], table[at + half + j]]
    const [a, b] = [x[j], x[half + j]]
    y[to + j] = a * cos - b * sin
    y[to + half + j] = b * cos + a * sin
  }
}
