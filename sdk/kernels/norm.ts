import type { Buf, Bytes } from '../bytes.ts'

/** RMS normalization of rows: layer norms (R = T) and the norms of queries and keys (R = T · heads). */
export interface NormJob<B extends Buf = Buf> {
  /** [R, n] f32. */
  readonly input: B
  /** R. */
  readonly rows: number
  /** n, a multiple of 8 up to 16,384. */
  readonly width: number
  /** [n] f32. */
  readonly weight: B
  /** ε, added to the mean of the squares. */
  readonly epsilon: number
  /** Out: [R, n] f32: x / √(mean(x²) + ε) · weight. The input itself, or memory apart from it. */
  readonly output: B
}

/** Reference, sums in f64. */
export function norm(job: NormJob<Bytes>): void {
  const { rows, width, epsilon } = job
  const [x, weight, output] = [job.input.f32, job.weight.f32, job.output.f32]
  for (let r = 0; r < rows; r++) {
    let sum = 0
    for (let i = r * width; i < (r + 1) * width; i++) sum += x[i] * x[i]
    const scale = 1 / Math.sqrt(sum / width + epsilon)
    for (let j = 0; j < width; j++) output[r * width + j] = x[r * width + j] * scale * weight[j]
  }
}
