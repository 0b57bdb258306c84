import type { Buf, Bytes } from '../bytes.ts'

/** Swaps the two outer axes and, where a table is given, turns each row by the position of its token. */
export interface RopeJob<B extends Buf = Buf> {
  /** [outer, inner, d] f32. */
  readonly input: B
  readonly outer: number
  readonly inner: number
  /** A multiple of 8. */
  readonly d: number
  /** Out: [inner, outer, d] f32, never the input. */
  readonly output: B
  /**
   * [T, d] f32: the cosines of a token's d/2 angles, then their sines. Pairs are (j, j + d/2):
   * y_j = x_j · cos_j − x_{j+d/2} · sin_j and y_{j+d/2} = x_{j+d/2} · cos_j + x_j · sin_j.
   * Without it nothing is turned: a plain transposition, equal to the bit.
   */
  readonly table?: B
  /** Which axis of the input counts the tokens of the table. */
  readonly tokensAxis: 'outer' | 'inner'
}

/** Reference: products in f64. */
export function rope(job: RopeJob<Bytes>): void {
  const { outer, inner, d, table, tokensAxis } = job
  for (let o = 0; o < outer; o++)
    for (let i = 0; i < inner; i++) {
      const from = (o * inner + i) * d
      const to = (i * outer + o) * d
      if (table) turn(job.input.f32, from, table.f32, (tokensAxis === 'outer' ? o : i) * d, job.output.f32, to, d)
      else job.output.u32.set(job.input.u32.subarray(from, from + d), to)
    }
}

function turn(
  x: Float32Array,
  from: number,
  table: Float32Array,
  at: number,
  y: Float32Array,
  to: number,
  d: number,
): void {
  const half = d / 2
  for (let j = 0; j < half; j++) {
    const [cos, sin] = [table[at + j], table[at + half + j]]
    const [a, b] = [x[from + j], x[from + half + j]]
    y[to + j] = a * cos - b * sin
    y[to + half + j] = b * cos + a * sin
  }
}
