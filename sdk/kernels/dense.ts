import type { Buf, Bytes } from '../bytes.ts'
import { loadRow, type Rows } from '../codec/codec.ts'

/** Exact causal attention of the last T tokens over everything up to each of them: prompts. */
export interface DenseJob<B extends Buf = Buf> {
  /** [Hq, T, d] f32. Query t stands at position `first` + t and sees positions 0..first + t. */
  readonly queries: B
  readonly tokens: number
  readonly first: number
  /** Rows that there are, at least 1: positions from here on are seen by no query. Unset: first + T. */
  readonly length?: number
  readonly keys: Rows<B>
  readonly values: Rows<B>
  readonly heads: number
  readonly group: number
  readonly scale: number
  /** Out: [Hq, T, d] f32. */
  readonly output: B
  /** Out: [Hq, T] f32, natural log of Σ exp(s). */
  readonly lse: B
}

/** Reference: each key row widened once a head, sums in f64. */
export function dense(job: DenseJob<Bytes>): void {
  const { heads, group, tokens, first } = job
  const d = job.keys.d
  const length = Math.min(first + tokens, job.length ?? first + tokens)
  const K = new Float32Array(length * d)
  const V = new Float32Array(length * d)
  for (let h = 0; h < heads; h++) {
    for (let n = 0; n < length; n++) {
      loadRow(job.keys, h, n, K.subarray(n * d, (n + 1) * d))
      loadRow(job.values, h, n, V.subarray(n * d, (n + 1) * d))
    }
    for (let hq = h * group; hq < (h + 1) * group; hq++)
      for (let t = 0; t < tokens; t++) {
        const { output, lse } = attendRow(
          job.queries.f32,
          (hq * tokens + t) * d,
          K,
          V,
          Math.min(length, first + t + 1),
          d,
          job.scale,
        )
        job.output.f32.set(output, (hq * tokens + t) * d)
        job.lse.f32[hq * tokens + t] = lse
      }
  }
}

/** One query over the first `length` rows, length ≥ 1. */
function attendRow(
  q: Float32Array,
  at: number,
  K: Float32Array,
  V: Float32Array,
  length: number,
  d: number,
  scale: number,
) {
  const scores = new Float64Array(length)
  let max = Number.NEGATIVE_INFINITY
  for (let n = 0; n < length; n++) {
    let dot = 0
    for (let j = 0; j < d; j++) dot += K[n * d + j] * q[at + j]
    scores[n] = dot * scale
    if (scores[n] > max) max = scores[n]
  }
  const output = new Float64Array(d)
  let sum = 0
  for (let n = 0; n < length; n++) {
    const p = Math.exp(scores[n] - max)
    sum += p
    for (let j = 0; j < d; j++) output[j] += p * V[n * d + j]
  }
  for (let j = 0; j < d; j++) output[j] /= sum
  return { output, lse: max + Math.log(sum) }
}
