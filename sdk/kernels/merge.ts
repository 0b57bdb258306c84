import type { Buf, Bytes } from '../bytes.ts'

/** Merges partial attention states into outputs. */
export interface MergeJob<B extends Buf = Buf> {
  /** [parts, Hq, d + 2] f32 as `attend` writes them. */
  readonly partials: B
  readonly parts: number
  readonly queryHeads: number
  readonly d: number
  /** Out: [Hq, d] f32. */
  readonly output: B
  /** Out: [Hq] f32, the natural log of Σ exp(s). */
  readonly lse: B
}

/** Reference; parts in order, sums in f64. Nothing to attend to: output 0, lse −Inf. */
export function merge(job: MergeJob<Bytes>): void {
  const { parts, queryHeads, d } = job
  const states = job.partials.f32
  const at = (p: number, hq: number) => (p * queryHeads + hq) * (d + 2)
  for (let hq = 0; hq < queryHeads; hq++) {
    let max = Number.NEGATIVE_INFINITY
    for (let p = 0; p < parts; p++) max = Math.max(max, states[at(p, hq) + d])
    let sum = 0
    const output = new Float64Array(d)
    for (let p = 0; p < parts; p++) {
      if (states[at(p, hq) + d] === Number.NEGATIVE_INFINITY) continue
      const w = Math.exp(states[at(p, hq) + d] - max)
      sum += w * states[at(p, hq) + d + 1]
      for (let j = 0; j < d; j++) output[j] += w * states[at(p, hq) + j]
    }
    for (let j = 0; j < d; j++) job.output.f32[hq * d + j] = sum > 0 ? output[j] / sum : 0
    job.lse.f32[hq] = sum > 0 ? max + Math.log(sum) : Number.NEGATIVE_INFINITY
  }
}
