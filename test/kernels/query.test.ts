import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import type { QueryJob } from '../../sdk/kernels/query.ts'
import { onEveryBackend } from '../support/backends.ts'
import { adversarialKeys, gaussians, HEAD_DIMS, poisoned, random, rotationOf } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable, expectSame } from '../support/repeat.ts'

function job(queries: Float32Array, d: number, group: number, choosers = 1): QueryJob<Bytes> {
  const heads = queries.length / (d * group)
  const rotation = rotationOf(d)
  return {
    queries: Bytes.of(queries),
    heads,
    group,
    choosers,
    rotation,
    chosen: poisoned(heads * choosers * d * 4),
    y: poisoned(heads * choosers * rotation.D * 4),
    scales: poisoned(heads * 4),
    t: poisoned(heads * choosers * rotation.D),
  }
}

function draws(d: number, heads: number, group: number, seed = d): Float32Array {
  return gaussians(random(seed), heads * group * d, 2)
}

/** Groups and choosers: `mean` has one chooser, `max` each query its own. */
const GROUPS = [
  [1, 1],
  [2, 1],
  [2, 2],
  [4, 1],
  [4, 4],
] as const

onEveryBackend('query', (backend) => {
  async function check(given: QueryJob<Bytes>) {
    const [got, want] = [await runOne(backend(), 'query', given), oracle('query', given)]
    expectSame(got.chosen.f32, want.chosen.f32, 'chosen')
    expectSame(got.y.u32, want.y.u32, 'bits of y')
    expectSame(got.t.i8, want.t.i8, 't')
    expectNear(got.scales.f32, want.scales.f32, (h) => 1e-6 * want.scales.f32[h], 'scale')
    return got
  }

  it.each(HEAD_DIMS)('gives the reference bits at d = %i', async (d) => {
    await check(job(draws(d, 3, 4), d, 4))
  })

  it('gives the reference bits for every group', async () => {
    for (const [group, choosers] of GROUPS) await check(job(draws(80, 3, group), 80, group, choosers))
  })

  it('gives the reference bits for hard queries, each alone and in groups', async () => {
    const hard = adversarialKeys(3, 64).filter((q) => q.every((v) => v === 0 || Math.abs(v) > 2 ** -120))
    const apart = Float32Array.from(hard.flatMap((q) => [...q]))
    await check(job(apart, 64, 1))
    const small = hard.filter((q) => q.every((v) => Math.abs(v) < 1e37))
    for (let i = 0; i + 4 <= small.length; i++) {
      const four = Float32Array.from(small.slice(i, i + 4).flatMap((q) => [...q]))
      for (const choosers of [1, 4]) await check(job(four, 64, 4, choosers))
    }
  })

  it('counts subnormal coordinates as 0', async () => {
    const hard = adversarialKeys(4, 64).flatMap((q) => [...q])
    const given = job(Float32Array.from(hard), 64, 1)
    const [got, want] = [await runOne(backend(), 'query', given), oracle('query', given)]
    expectSame(got.y.u32, want.y.u32, 'bits of y')
    expectSame(got.t.i8, want.t.i8, 't')
    const tiny = await runOne(backend(), 'query', job(new Float32Array(64).fill(-1e-40), 64, 1))
    expect([...new Set(tiny.y.f32), ...new Set(tiny.t.i8)]).toEqual([0, 0])
  })

  it('makes t = 0 of a zero query and ±15 of equal coordinates', async () => {
    const zero = await check(job(new Float32Array(64), 64, 1))
    expect(new Set(zero.t.i8)).toEqual(new Set([0]))
    const spike = new Float32Array(64)
    spike[5] = -3
    const flat = await check(job(spike, 64, 1))
    expect(new Set([...flat.t.i8].map(Math.abs))).toEqual(new Set([15]))
  })

  it('sums in f32 in head order', async () => {
    const [a, b, c] = [1, 2 ** -24, 2 ** -24]
    const q = Float32Array.from([a, b, c, 0].flatMap((v) => new Array(8).fill(v)))
    const { chosen } = await check(job(q, 8, 4))
    expect([...chosen.f32]).toEqual(new Array(8).fill(1))
  })

  it('gives all choosers of a group one power of two and one M', async () => {
    const q = draws(64, 1, 4)
    q.subarray(64, 128).fill(0)
    for (let j = 128; j < 192; j++) q[j] *= 1e-3
    const { t } = await check(job(q, 64, 4, 4))
    const largest = [0, 1, 2, 3].map((c) => Math.max(...t.i8.subarray(c * 64, c * 64 + 64).map(Math.abs)))
    expect(Math.max(...largest)).toBe(15)
    expect(largest.slice(1, 3)).toEqual([0, 0])
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(backend(), 'query', job(draws(80, 2, 4), 80, 4), job(draws(80, 3, 2), 80, 2, 2)))
})

describe('query, the reference', () => {
  it('scales y to the true rotated query that chooses', () => {
    for (const [group, choosers] of GROUPS) {
      const given = job(draws(96, 2, group), 96, group, choosers)
      const { y, scales, chosen } = oracle('query', given)
      const share = choosers === 1 ? group : 1
      for (let r = 0; r < 2 * choosers; r++) {
        const rotated = Math.hypot(...y.f32.subarray(r * 128, (r + 1) * 128)) * scales.f32[Math.floor(r / choosers)]
        expect(rotated).toBeCloseTo(Math.hypot(...chosen.f32.subarray(r * 96, (r + 1) * 96)) / share, 4)
      }
    }
  })

  it('rounds 15·|q̃|/M to the nearest integer, halves down', () => {
    const given = job(draws(128, 1, 1), 128, 1)
    const { y, t } = oracle('query', given)
    const M = Math.max(...y.f32.map(Math.abs))
    y.f32.forEach((v, j) => {
      const exact = (15 * v) / M
      expect(Math.abs(t.i8[j] - exact)).toBeLessThanOrEqual(0.5 + 1e-5)
    })
  })
})
