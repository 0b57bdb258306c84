import type { Buf, Bytes } from '../bytes.ts'

/** What RMS normalization multiplies rows of n by. */
export interface RmsNorm<B extends Buf = Buf> {
  /** [n] f32. */
  readonly weight: B
  /** ε, added to the mean of the squares. */
  readonly epsilon: number
}

/** RMS normalization of rows: layer norms (R = T) and the norms of queries and keys (R = T · heads). */
export interface NormJob<B extends Buf = Buf> extends RmsNorm<B> {
  /** [R, n] f32. */
  readonly input: B
  /** R. */
  readonly rows: number
  /** n, a multiple of 8 up to 16,384. */
  readonly width: number
  /** Out: [R, n] f32: x / √(mean(x²) + ε) · weight. The input itself, or memory apart from it. */
  readonly output: B
}

/** Reference, sums in f64. */
export function norm(job: NormJob<Bytes>): void {
  const { rows, width, epsilon } = job
  const [x, weight, output] = [job.input.f32, job.weight.f32, job.output.f32]
  for (let r = 0; r < rows; r++) {
    const scale = rmsFactor(x, r * width, width, epsilon)
    for (let j = 0; j < width; j++) output[r * width + j] = x[r * width + j] * scale * weight[j]
  }
}

/** 1 / √(mean(x²) + ε) of `width` values from `at` on, in f64. */
export function rmsFactor(x: Float32Array, at: number, width: number, epsilon: number): number {
  let sum = 0
  for (let i = at; i < at + width; i++) sum += x[i] * x[i]
  return 1 / Math.sqrt(sum / width + epsilon)
}
