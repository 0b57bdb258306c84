import { describe, expect, it } from 'vitest'
import type { Bytes } from '../../sdk/bytes.ts'
import {
  type CoarseCollisionJob,
  coarseCollision,
  tierLimits,
  tierWeights,
} from '../../sdk/kernels/coarse-collision.ts'
import { onEveryBackend } from '../support/backends.ts'
import { gaussians, integer, poisoned, random } from '../support/inputs.ts'
import { emptySummary, oracle, runOne } from '../support/jobs.ts'
import { expectRepeatable, expectSame, scoresOf } from '../support/repeat.ts'

interface Options {
  heads?: number
  choosers?: number
  rho?: number
  /** Query coordinates are multiples of it, so that centroid scores tie; 0 for none. */
  grid?: number
  /** Every key has this id in every subspace. */
  only?: number
}

/** Skewed centroid ids with their true counts. */
function job(D: number, count: number, options: Options = {}): CoarseCollisionJob<Bytes> {
  const { heads = 2, choosers = 1, rho = 0.2, grid = 0, only } = options
  const next = random(D * 7 + count)
  const summary = emptySummary(heads, count + 3, D, { counts: true })
  const B = D / 8
  for (let h = 0; h < heads; h++)
    for (let n = 0; n < count; n++)
      for (let b = 0; b < B; b++) {
        const id = only ?? (next() < 0.3 ? b * 7 : integer(next, 0, 255)) & 255
        summary.signs.u8[(h * summary.cap + n) * B + b] = id
        summary.counts!.u32[(h * B + b) * 256 + id]++
      }
  const y = poisoned(heads * choosers * D * 4)
  y.f32.set(gaussians(next, heads * choosers * D))
  if (grid) for (let i = 0; i < y.f32.length; i++) y.f32[i] = Math.round(y.f32[i] / grid) * grid
  const stride = Math.ceil(count / 16) * 16
  return { summary, heads, choosers, count, y, rho, scores: poisoned(heads * stride * 2), stride }
}

onEveryBackend('coarse-collision', (backend) => {
  async function check(given: CoarseCollisionJob<Bytes>): Promise<number[]> {
    const got = scoresOf(await runOne(backend(), 'coarseCollision', given))
    expectSame(got, scoresOf(oracle('coarseCollision', given)), 'votes')
    return got
  }

  it.each([8, 16, 32, 64, 128, 256])('votes as the reference at D = %i', async (D) => {
    for (const count of [1, 15, 17, 300]) await check(job(D, count))
  })

  it.each([0.001, 0.1, 0.5, 1])('votes as the reference at ρ = %f', async (rho) => {
    await check(job(128, 777, { rho }))
  })

  it('breaks ties of centroid scores to the lower id', async () => {
    await check(job(64, 500, { grid: 1 }))
    await check(job(64, 500, { grid: 100 }))
    const equal = job(64, 500)
    equal.y.f32.fill(0.3)
    await check(equal)
  })

  it('takes the best chooser', async () => {
    await check(job(32, 200, { choosers: 2 }))
    await check(job(32, 200, { choosers: 4, rho: 0.5 }))
  })

  it('gives all votes to keys that share one centroid', async () => {
    const scores = await check(job(64, 90, { only: 3, rho: 1 }))
    expect(new Set(scores)).toEqual(new Set([6 * 8]))
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(backend(), 'coarseCollision', job(128, 300), job(32, 17, { heads: 3, choosers: 2, rho: 1 })))
})

describe('coarse-collision, the reference', () => {
  it('ends its tiers at ⌈N·ρ·x⌉', () => {
    expect(tierLimits(1000, 0.2)).toEqual([10, 30, 60, 100, 150, 200])
    expect(tierLimits(1, 0.2)).toEqual([1, 1, 1, 1, 1, 1])
  })

  it('votes by the keys that better centroids hold', () => {
    const given = job(8, 400, { heads: 1, rho: 0.5, grid: 0.5 })
    const counts = given.summary.counts!.u32
    const score = (id: number) => given.y.f32.reduce((sum, v, j) => sum + ((id >> j) & 1 ? v : -v), 0)
    const weights = tierWeights(given, 0, 0, 0)
    const limits = tierLimits(400, 0.5)
    for (let id = 0; id < 256; id++) {
      let before = 0
      for (let other = 0; other < 256; other++)
        if (score(other) > score(id) || (score(other) === score(id) && other < id)) before += counts[other]
      expect(weights[id]).toBe(limits.filter((limit) => before < limit).length)
    }
    coarseCollision(given)
    for (let n = 0; n < 400; n++) expect(given.scores.i16[n]).toBe(weights[given.summary.signs.u8[n]])
  })

  it('takes the most votes of any chooser', () => {
    const given = job(16, 120, { heads: 1, choosers: 3 })
    const alone = [0, 1, 2].map((c) => {
      const y = poisoned(16 * 4)
      y.f32.set(given.y.f32.subarray(c * 16, (c + 1) * 16))
      return scoresOf(oracle('coarseCollision', { ...given, y, choosers: 1 }))
    })
    const most = alone[0].map((_, i) => Math.max(...alone.map((votes) => votes[i])))
    expect(scoresOf(oracle('coarseCollision', given))).toEqual(most)
  })
})
