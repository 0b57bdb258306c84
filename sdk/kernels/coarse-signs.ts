import type { Buf, Bytes } from '../bytes.ts'
import { type Summary, signByte } from '../codec/codec.ts'

/** Scores N keys of every head from the sign plane alone. */
export interface CoarseSignsJob<B extends Buf = Buf> {
  readonly summary: Summary<B>
  readonly heads: number
  readonly choosers: number
  readonly count: number
  /** [H, Gc, D] i8. */
  readonly t: B
  /** Multiply by the key's norm byte: score = (s · n8) >> 8. */
  readonly normWeighted: boolean
  /** Out: [H, stride] i16, the maximum over choosers; entries from `count` on are undefined. */
  readonly scores: B
  /** Scores between two heads; even, at least `count` rounded up to 16. */
  readonly stride: number
}

/** Reference: score = Σ_j s_j t_j with s_j = ±1 the key's sign bits; range ±15D, of one parity for one chooser. */
export function coarseSigns(job: CoarseSignsJob<Bytes>): void {
  const { summary: s, heads, choosers, count } = job
  for (let h = 0; h < heads; h++)
    for (let n = 0; n < count; n++) {
      let best = -32768
      for (let c = 0; c < choosers; c++) best = Math.max(best, signScore(s, h, n, job.t.i8, (h * choosers + c) * s.D))
      const norm = job.normWeighted && s.norms ? s.norms.u8[h * s.cap + n] : undefined
      job.scores.i16[h * job.stride + n] = norm === undefined ? best : (best * norm) >> 8
    }
}

function signScore(s: Summary<Bytes>, h: number, n: number, t: Int8Array, at: number): number {
  let score = 0
  for (let b = 0; b < s.D / 8; b++) {
    const bits = s.signs.u8[signByte(s, h, n, b)]
    for (let j = 0; j < 8; j++) score += (bits >> j) & 1 ? t[at + 8 * b + j] : -t[at + 8 * b + j]
  }
  return score
}
