import type { Buf, Bytes } from '../bytes.ts'
import { type Dtype, toF32 } from '../dtype.ts'
import { silu } from './gate.ts'
import { type RmsNorm, rmsFactor } from './norm.ts'

/** The most tokens of a job with `norm` or `gated`: more take `norm`, `linear` and `gate` apart. */
export const FUSED_TOKENS = 8

/** A matrix of a model applied to tokens: y = x · Wᵀ (+ bias) (+ what is there), or silu(x · Wᵀ) · (x · Uᵀ). */
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
  /** RMS-normalizes the rows of the input first; T is at most `FUSED_TOKENS`. */
  readonly norm?: RmsNorm<B>
  /** U, [m, n] of `dtype`, finite: the output is silu(x · Wᵀ) · (x · Uᵀ). No bias, no `add`; T at most `FUSED_TOKENS`. */
  readonly gated?: B
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
 * Reference: each row of a matrix widened once, sums in f64. Other backends sum in f32 in an order of their own, the
 * same in every run and whatever other jobs are in the call.
 * @throws TypeError see `requireFusible`
 */
export function linear(job: LinearJob<Bytes>): void {
  requireFusible(job)
  const { tokens, dtype, inputs, outputs, bias, add, gated } = job
  const x = job.norm ? normalized(job, job.norm) : job.input.f32
  const y = job.output.f32
  const [row, up] = [new Float32Array(inputs), new Float32Array(inputs)]
  for (let o = 0; o < outputs; o++) {
    widen(dtype, job.weights, o, row)
    if (gated) widen(dtype, gated, o, up)
    for (let t = 0; t < tokens; t++) {
      let sum = bias ? bias.f32[o] : 0
      if (add) sum += y[t * outputs + o]
      sum += inner(x, t * inputs, row)
      y[t * outputs + o] = gated ? silu(sum) * inner(x, t * inputs, up) : sum
    }
  }
}

/** @throws TypeError for `norm` or `gated` with more than `FUSED_TOKENS` tokens, and `gated` with a bias or `add` */
export function requireFusible({ tokens, norm, gated, bias, add }: LinearJob): void {
  if ((norm || gated) && tokens > FUSED_TOKENS)
    throw new TypeError(`linear with norm or gated takes at most ${FUSED_TOKENS} tokens, not ${tokens}`)
  if (gated && (bias || add)) throw new TypeError('linear with gated takes no bias and adds to nothing')
}

function normalized({ input, tokens, inputs }: LinearJob<Bytes>, { weight, epsilon }: RmsNorm<Bytes>): Float64Array {
  const out = new Float64Array(tokens * inputs)
  for (let at = 0; at < out.length; at += inputs) {
    const factor = rmsFactor(input.f32, at, inputs, epsilon)
    for (let j = 0; j < inputs; j++) out[at + j] = input.f32[at + j] * factor * weight.f32[j]
  }
  return out
}

function widen(dtype: Dtype, weights: Bytes, o: number, row: Float32Array): void {
  toF32(dtype, dtype === 'f32' ? weights.f32 : weights.u16, o * row.length, row.length, row)
}

function inner(x: Float32Array | Float64Array, at: number, row: Float32Array): number {
  let sum = 0
  for (let j = 0; j < row.length; j++) sum += x[at + j] * row[j]
  return sum
}
