import type { Buf, Bytes } from '../bytes.ts'
import { CENTROIDS, signTable } from '../codec/centroids.ts'
import { type Summary, signByte } from '../codec/codec.ts'
import { M } from '../shape.ts'

/** Scores N keys of every head by votes of the centroids nearest to the query, the published way. */
export interface CoarseCollisionJob<B extends Buf = Buf> {
  /** Must have `counts`. */
  readonly summary: Summary<B>
  readonly heads: number
  readonly choosers: number
  readonly count: number
  /** [H, Gc, D] f32 butterflies. */
  readonly y: B
  /** Share of the zone that the widest tier covers, 0 < ρ ≤ 1. */
  readonly rho: number
  /** Out: [H, stride] i16 votes 0..6B, the maximum over choosers. */
  readonly scores: B
  readonly stride: number
}

/** Shares of ⌈N·ρ⌉ at which the six tiers end. */
export const TIERS = [0.05, 0.15, 0.3, 0.5, 0.75, 1] as const

/** Keys that each tier covers: ⌈N·ρ·x⌉, evaluated left to right in f64. */
export function tierLimits(count: number, rho: number): number[] {
  return TIERS.map((x) => Math.ceil(count * rho * x))
}

/**
 * Reference. Centroid scores are f32 table sums; sorted descending, ties to the lower id, walked with the zone's counts:
 * a centroid whose preceding count is below a tier's limit earns that tier's vote.
 */
export function coarseCollision(job: CoarseCollisionJob<Bytes>): void {
  const { summary: s, heads, choosers, count } = job
  const B = s.D / M
  const votes = new Uint8Array(B * CENTROIDS)
  for (let h = 0; h < heads; h++)
    for (let c = 0; c < choosers; c++) {
      for (let b = 0; b < B; b++) votes.set(tierWeights(job, h, c, b), b * CENTROIDS)
      for (let n = 0; n < count; n++) {
        let score = 0
        for (let b = 0; b < B; b++) score += votes[b * CENTROIDS + s.signs.u8[signByte(s, h, n, b)]]
        const at = h * job.stride + n
        job.scores.i16[at] = c === 0 ? score : Math.max(job.scores.i16[at], score)
      }
    }
}

/** Votes 0..6 of the 256 centroids of subspace b, for head h and chooser c. */
export function tierWeights(job: CoarseCollisionJob<Bytes>, h: number, c: number, b: number): Uint8Array {
  const { summary: s, choosers } = job
  const lo = new Float32Array(16)
  const hi = new Float32Array(16)
  const at = (h * choosers + c) * s.D + b * M
  signTable(job.y.f32, at, lo)
  signTable(job.y.f32, at + 4, hi)
  const scores = Float32Array.from({ length: CENTROIDS }, (_, id) => lo[id & 15] + hi[id >> 4])
  const order = Array.from(scores.keys()).sort((a, z) => scores[z] - scores[a] || a - z)
  const counts = s.counts?.u32.subarray((h * (s.D / M) + b) * CENTROIDS)
  const limits = tierLimits(job.count, job.rho)
  const weights = new Uint8Array(CENTROIDS)
  let before = 0
  for (const id of order) {
    weights[id] = limits.filter((limit) => before < limit).length
    before += counts ? counts[id] : 0
  }
  return weights
}
