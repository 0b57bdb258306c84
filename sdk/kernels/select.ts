import type { Buf, Bytes } from '../bytes.ts'

/** The C best of N scores for every head, as a set in index order. */
export interface SelectJob<B extends Buf = Buf> {
  /** [H, stride] i16 in [lo, hi]; the scores of one head are congruent modulo `step`. */
  readonly scores: B
  readonly stride: number
  readonly heads: number
  readonly count: number
  /** 1 ≤ C ≤ N. */
  readonly candidates: number
  readonly lo: number
  readonly hi: number
  /** 1 or 2. */
  readonly step: number
  /** Out: [H, C] u32, ascending. */
  readonly ids: B
}

/** Reference: histogram, threshold, stable compaction. Ties at the threshold go to the lower index. */
export function select(job: SelectJob<Bytes>): void {
  const { heads, count, candidates: C, lo, hi } = job
  for (let h = 0; h < heads; h++) {
    const scores = job.scores.i16.subarray(h * job.stride, h * job.stride + count)
    const histogram = new Uint32Array(hi - lo + 1)
    for (const s of scores) histogram[s - lo]++
    let threshold = hi - lo
    let above = 0
    while (above + histogram[threshold] < C) above += histogram[threshold--]
    let ties = C - above
    let out = h * C
    scores.forEach((s, n) => {
      const bin = s - lo
      if (bin > threshold || (bin === threshold && ties-- > 0)) job.ids.u32[out++] = n
    })
  }
}
