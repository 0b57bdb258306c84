import { describe, expect, it } from 'vitest'
import type { Bytes } from '../../sdk/bytes.ts'
import type { CoarseSignsJob } from '../../sdk/kernels/coarse-signs.ts'
import { paddedDim } from '../../sdk/shape.ts'
import { onEveryBackend } from '../support/backends.ts'
import { HEAD_DIMS, integer, poisoned, random } from '../support/inputs.ts'
import { emptySummary, oracle, runOne } from '../support/jobs.ts'
import { expectRepeatable, expectSame, scoresOf } from '../support/repeat.ts'

interface Options {
  heads?: number
  choosers?: number
  normWeighted?: boolean
  /** Of t; drawn from −15..15 unless given. */
  t?: number
  /** Of the sign bytes; random unless given. */
  signs?: number
}

/** Random sign planes, norms and integers; the zone is shorter than its capacity. */
function job(D: number, count: number, options: Options = {}): CoarseSignsJob<Bytes> {
  const { heads = 2, choosers = 1, normWeighted = false } = options
  const next = random(D * 1000 + count)
  const summary = emptySummary(heads, count + 20, D, { norms: normWeighted })
  const t = poisoned(heads * choosers * D)
  for (let i = 0; i < summary.signs.bytes; i++) summary.signs.u8[i] = options.signs ?? integer(next, 0, 255)
  for (let i = 0; i < heads * choosers * D; i++) t.i8[i] = options.t ?? integer(next, -15, 15)
  summary.norms?.u8.forEach((_, i, norms) => {
    norms[i] = integer(next, 0, 255)
  })
  const stride = Math.ceil(count / 16) * 16 + 32
  return { summary, heads, choosers, count, t, normWeighted, scores: poisoned(heads * stride * 2), stride }
}

onEveryBackend('coarse-signs', (backend) => {
  async function check(given: CoarseSignsJob<Bytes>): Promise<number[]> {
    const got = scoresOf(await runOne(backend(), 'coarseSigns', given))
    expectSame(got, scoresOf(oracle('coarseSigns', given)), 'score')
    return got
  }

  it.each([...new Set(HEAD_DIMS.map(paddedDim))])('scores every key at D = %i', async (D) => {
    for (const count of [1, 15, 16, 17, 777]) await check(job(D, count))
  })

  it('takes the best of several choosers', async () => {
    for (const choosers of [2, 4]) for (const count of [1, 33, 300]) await check(job(64, count, { choosers }))
  })

  it('multiplies by the norm byte and shifts arithmetically', async () => {
    const negative = await check(job(128, 777, { normWeighted: true }))
    expect(Math.min(...negative)).toBeLessThan(-100)
    await check(job(64, 99, { normWeighted: true, choosers: 4 }))
    await check(job(128, 40, { normWeighted: true, t: -15, signs: 255 }))
  })

  it('reaches ±15·D without wrapping', async () => {
    for (const D of [8, 128, 256])
      for (const t of [-15, 15])
        for (const signs of [0, 255]) {
          const scores = await check(job(D, 17, { t, signs }))
          expect(new Set(scores)).toEqual(new Set([15 * D * Math.sign(t) * (signs ? 1 : -1)]))
        }
  })

  it('scores 0 for t = 0', async () => {
    expect(new Set(await check(job(128, 50, { t: 0 })))).toEqual(new Set([0]))
  })

  it('scores a long zone of one head', async () => {
    await check(job(128, 2000, { heads: 1 }))
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(
      backend(),
      'coarseSigns',
      job(128, 777, { normWeighted: true }),
      job(64, 17, { heads: 3, choosers: 2 }),
    ))
})

describe('coarse-signs, the reference', () => {
  it('is Σ s·t, of the parity of Σ |t|', () => {
    const given = job(64, 100)
    const scores = scoresOf(oracle('coarseSigns', given))
    scores.forEach((score, i) => {
      const [h, n] = [Math.floor(i / 100), i % 100]
      let [sum, size] = [0, 0]
      for (let j = 0; j < 64; j++) {
        const t = given.t.i8[h * 64 + j]
        const bit = (given.summary.signs.u8[(h * given.summary.cap + n) * 8 + (j >> 3)] >> (j & 7)) & 1
        sum += t * (2 * bit - 1)
        size += Math.abs(t)
      }
      expect(score).toBe(sum)
      expect((score + size) % 2).toBe(0)
    })
  })

  it('rounds weighted scores down, negative ones too', () => {
    const given = job(8, 2, { heads: 1, t: 1, normWeighted: true })
    given.summary.signs.u8.set([0, 255])
    given.summary.norms!.u8.set([33, 33])
    expect(scoresOf(oracle('coarseSigns', given))).toEqual([-2, 1])
  })

  it('takes the best chooser before it weights by length', () => {
    const given = job(32, 60, { choosers: 3, normWeighted: true })
    const alone = [0, 1, 2].map((c) => {
      const t = poisoned(2 * 32)
      for (let h = 0; h < 2; h++) t.i8.set(given.t.i8.subarray((h * 3 + c) * 32, (h * 3 + c + 1) * 32), h * 32)
      return scoresOf(oracle('coarseSigns', { ...given, t, choosers: 1 }))
    })
    const best = alone[0].map((_, i) => Math.max(...alone.map((scores) => scores[i])))
    expect(scoresOf(oracle('coarseSigns', given))).toEqual(best)
  })
})
