import type { Buf, Bytes } from '../bytes.ts'
import { type Dtype, toF32 } from '../dtype.ts'

/** A matrix of a model applied to tokens: y = x · Wᵀ (+ bias) (+ what is there). */
export interface LinearJob<B extends Buf = Buf> {
  /** [T, n] f32. */
  readonly input: B
  /** T. Up to 8 the weights are read once for all tokens. */
  readonly tokens: number
  /** [m, n] of `dtype`, finite. */
  readonly weights: B
  readonly dtype: Dtype
  /** n, a multiple of 8. */
  readonly inputs: number
  /** m, any. */
  readonly outputs: number
  /** [m] f32. */
  readonly bias?: B
  /** Adds to what the output holds, e.g. a residual. */
  readonly add: boolean
  /**
   * Out: [T, m] f32, other memory than the input. Jobs of a call with as many tokens and inputs (q, k and v; gate and
   * up) run as one dispatch where their weights are allocated `together`, and their outputs too, apart from the weights.
   */
  readonly output: B
}

/**
 * Reference: each row of the matrix widened once, sums in f64. Other backends sum in f32 in an order of their own, the
 * same in every run and whatever other jobs are in the call.
 */
export function linear(job: LinearJob<Bytes>): void {
  const { tokens, dtype, inputs, outputs, bias, add } = job
  const [x, y] = [job.input.f32, job.output.f32]
  const weights = dtype === 'f32' ? job.weights.f32 : job.weights.u16
  const row = new Float32Array(inputs)
  for (let o = 0; o < outputs; o++) {
    toF32(dtype, weights, o * inputs, inputs, row)
    for (let t = 0; t < tokens; t++) {
      let sum = bias ? bias.f32[o] : 0
      if (add) sum += y[t * outputs + o]
      for (let j = 0; j < inputs; j++) sum += x[t * inputs + j] * row[j]
      y[t * outputs + o] = sum
    }
  }
}
