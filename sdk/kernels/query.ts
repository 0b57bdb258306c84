import type { Buf, Bytes } from '../bytes.ts'
import type { Rotation } from '../codec/codec.ts'
import { exponentOf, rotateRow } from './rotate.ts'

/**
 * Makes of a group's queries what chooses its keys. `choosers` Gc is 1 (`mean`: the group's sum) or G (`max`: each query).
 * The group's choosers share one power of two and one M = max|q̃|, so that their integers compare.
 */
export interface QueryJob<B extends Buf = Buf> {
  /** [Hq, d] f32, finite. */
  readonly queries: B
  readonly heads: number
  readonly group: number
  readonly choosers: number
  readonly rotation: Rotation<B>
  /** Out: [H, Gc, d] f32, the choosers themselves (the sum, not the mean, for `mean`). */
  readonly chosen: B
  /** Out: [H, Gc, D] f32, their butterflies. */
  readonly y: B
  /** Out: [H] f32: the true rotated query that chooses is y · scale, scale = 2^e / (√D · G) or 2^e / √D. */
  readonly scales: B
  /** Out: [H, Gc, D] i8, t in −15..15. */
  readonly t: B
}

/** Reference. Sums in f32 in head order; t_j = sign(q̃_j) · #{ i in 1..15 : 30·|q̃_j| > (2i−1)·M }, f32 products. */
export function query(job: QueryJob<Bytes>): void {
  const { heads, group, choosers, rotation } = job
  const { d, D } = rotation
  const [x, y] = [job.chosen.f32, job.y.f32]
  for (let h = 0; h < heads; h++) {
    choose(job, h)
    const e = exponentOf(x, h * choosers * d, choosers * d)
    for (let c = 0; c < choosers; c++) {
      const r = h * choosers + c
      rotateRow(x, r * d, d, e, rotation.signs.i8, y, r * D, D)
    }
    job.scales.f32[h] = 2 ** e / (Math.sqrt(D) * (choosers === 1 ? group : 1))
    quantize(y.subarray(h * choosers * D, (h + 1) * choosers * D), job.t.i8, h * choosers * D)
  }
}

/** Writes head h's choosers: the sum of its queries, or the queries as they are. */
function choose(job: QueryJob<Bytes>, h: number): void {
  const { group, choosers } = job
  const d = job.rotation.d
  const q = job.queries.f32
  for (let j = 0; j < d; j++)
    if (choosers === 1) {
      let sum = q[h * group * d + j]
      for (let g = 1; g < group; g++) sum = Math.fround(sum + q[(h * group + g) * d + j])
      job.chosen.f32[h * d + j] = sum
    } else for (let g = 0; g < group; g++) job.chosen.f32[(h * group + g) * d + j] = q[(h * group + g) * d + j]
}

function quantize(y: Float32Array, t: Int8Array, at: number): void {
  const f = Math.fround
  let M = 0
  for (const v of y) M = Math.max(M, Math.abs(v))
  for (let j = 0; j < y.length; j++) {
    const a = f(30 * Math.abs(y[j]))
    let level = 0
    while (level < 15 && a > f((2 * level + 1) * M)) level++
    t[at + j] = y[j] < 0 ? -level : level
  }
}
