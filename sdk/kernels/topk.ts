import type { Buf, Bytes } from '../bytes.ts'

/** The K best of C values for every head, best first. */
export interface TopkJob<B extends Buf = Buf> {
  /** [H, C] f32, no NaN. */
  readonly values: B
  /** [H, C] u32 ascending; null for 0..C−1. */
  readonly ids: B | null
  readonly heads: number
  readonly count: number
  /** 1 ≤ K ≤ C. */
  readonly k: number
  /** Out: [H, K] u32, by value descending, ties to the lower id. */
  readonly topIds: B
  /** Out: [H, K] f32. */
  readonly topValues: B
}

/** Reference: a full sort. −0 equals 0. */
export function topk(job: TopkJob<Bytes>): void {
  const { heads, count, k } = job
  for (let h = 0; h < heads; h++) {
    const values = job.values.f32.subarray(h * count, (h + 1) * count)
    const order = Uint32Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b)
    for (let i = 0; i < k; i++) {
      job.topIds.u32[h * k + i] = job.ids ? job.ids.u32[h * count + order[i]] : order[i]
      job.topValues.f32[h * k + i] = values[order[i]]
    }
  }
}
