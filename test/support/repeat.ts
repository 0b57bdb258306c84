import { expect } from 'vitest'
import type { Backend } from '../../sdk/backend.ts'
import type { Bytes } from '../../sdk/bytes.ts'
import { magnitudeByte, type Summary, signByte, weightByte } from '../../sdk/codec/codec.ts'
import { type HostJobs, runOn, type Verb } from './jobs.ts'

/** Results of `encode` for keys [from, to) of every head, and the state of each head, as bytes in canonical order. */
export function codesOf(s: Summary<Bytes>, to: number, from = 0): number[] {
  const heads = s.scales.bytes / 2 / s.cap
  const out: number[] = []
  for (let h = 0; h < heads; h++)
    for (let n = from; n < to; n++) {
      for (let b = 0; b < s.D / 8; b++) {
        out.push(s.signs.u8[signByte(s, h, n, b)], s.weights.u8[weightByte(s, h, n, b)])
        for (let p = 0; p < 3; p++) out.push(s.magnitudes.u8[magnitudeByte(s, h, n, p, b)])
      }
      out.push(s.scales.u16[h * s.cap + n])
      if (s.norms) out.push(s.norms.u8[h * s.cap + n])
    }
  return out
}

/** [H, count] of scores laid out with a stride. */
export function scoresOf(job: { scores: Bytes; stride: number; heads: number; count: number }): number[] {
  return Array.from({ length: job.heads }, (_, h) => [
    ...job.scores.i16.subarray(h * job.stride, h * job.stride + job.count),
  ]).flat()
}

/** Everything a job defines, as comparable numbers; what its contract leaves undefined is left out. */
const DEFINED: { readonly [V in Verb]: (job: HostJobs[V]) => ReadonlyArray<ArrayLike<number> | undefined> } = {
  rotate: (job) => [job.y.u32, job.exponents.i32],
  encode: ({ summary, at, count }) => [codesOf(summary, at + count), summary.counts?.u32, summary.normExp?.i32],
  query: (job) => [job.chosen.u32, job.y.u32, job.scales.u32, job.t.i8],
  coarseSigns: (job) => [scoresOf(job)],
  coarseCollision: (job) => [scoresOf(job)],
  select: (job) => [job.ids.u32],
  rerank: (job) => [job.estimates.u32],
  topk: (job) => [job.topIds.u32, job.topValues.u32],
  attend: (job) => [job.partials.u32],
  merge: (job) => [job.output.u32, job.lse.u32],
  dense: (job) => [job.output.u32, job.lse.u32],
  store: (job) => [job.rows.buf.u32, job.refused.u32],
  lookup: (job) => [job.output.u32],
  norm: (job) => [job.output.u32],
  rope: (job) => [job.output.u32],
  linear: (job) => [job.output.u32],
  gate: (job) => [job.output.u32],
}

/** Two jobs in one call twice, and each alone: the same bytes every time. */
export async function expectRepeatable<V extends Verb>(backend: Backend, verb: V, a: HostJobs[V], b: HostJobs[V]) {
  const seen = (jobs: readonly HostJobs[V][]) => jobs.map((job) => DEFINED[verb](job).map((x) => x && Array.from(x)))
  const together = seen(await runOn(backend, verb, [a, b]))
  expect(seen(await runOn(backend, verb, [a, b])), 'a second run').toEqual(together)
  expect(seen(await runOn(backend, verb, [a])), 'the first job alone').toEqual([together[0]])
  expect(seen(await runOn(backend, verb, [b])), 'the second job alone').toEqual([together[1]])
}

/** Fails at the first place where two lists differ, naming it. */
export function expectSame(got: ArrayLike<number>, want: ArrayLike<number>, what: string): void {
  if (got.length !== want.length) expect.fail(`${what}: ${got.length} numbers, want ${want.length}`)
  for (let i = 0; i < want.length; i++)
    if (got[i] !== want[i]) expect.fail(`${what}[${i}] of ${want.length}: got ${got[i]}, want ${want[i]}`)
}

/** Fails at the first place where two lists differ by more than the tolerance there. */
export function expectNear(
  got: ArrayLike<number>,
  want: ArrayLike<number>,
  tolerance: number | ((i: number) => number),
  what: string,
): void {
  if (got.length !== want.length) expect.fail(`${what}: ${got.length} numbers, want ${want.length}`)
  for (let i = 0; i < want.length; i++) {
    const most = typeof tolerance === 'number' ? tolerance : tolerance(i)
    if (got[i] === want[i] || Math.abs(got[i] - want[i]) <= most) continue
    expect.fail(`${what}[${i}] of ${want.length}: got ${got[i]}, want ${want[i]} within ${most}`)
  }
}
