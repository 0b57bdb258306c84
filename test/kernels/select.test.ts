import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Bytes } from '../../sdk/bytes.ts'
import type { SelectJob } from '../../sdk/kernels/select.ts'
import { onEveryBackend } from '../support/backends.ts'
import { integer, poisoned, random } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectRepeatable, expectSame } from '../support/repeat.ts'

type Bounds = Pick<SelectJob, 'lo' | 'hi' | 'step'>
const SIGNS: Bounds = { lo: -15 * 128, hi: 15 * 128, step: 2 }
const WEIGHTED: Bounds = { lo: -15 * 128, hi: 15 * 128, step: 1 }
const VOTES: Bounds = { lo: 0, hi: 96, step: 1 }

/** Scores of each head, one list a head; what lies past them in the stride is stale. */
function job(lists: readonly (readonly number[])[], candidates: number, bounds: Bounds): SelectJob<Bytes> {
  const [heads, count] = [lists.length, lists[0].length]
  const stride = Math.ceil(count / 16) * 16 + 16
  const scores = poisoned(heads * stride * 2)
  lists.forEach((list, h) => {
    scores.i16.set(list, h * stride)
  })
  return { scores, stride, heads, count, candidates, ...bounds, ids: poisoned(heads * candidates * 4) }
}

/** Random scores of one parity a head, `spread` around `middle`. */
function draws(count: number, heads: number, { lo, hi, step }: Bounds, spread = 200, middle = (lo + hi) / 2) {
  const next = random(count + heads)
  return Array.from({ length: heads }, (_, h) =>
    Array.from({ length: count }, () => {
      const v = Math.max(lo, Math.min(hi - step, middle + integer(next, -spread, spread)))
      return step === 2 ? lo + 2 * Math.floor((v - lo) / 2) + (h % 2) : v
    }),
  )
}

/** The definition: sort by score descending, then index; the first C, by index. */
function best(list: readonly number[], candidates: number): number[] {
  const order = list.map((_, n) => n).sort((a, b) => list[b] - list[a] || a - b)
  return order.slice(0, candidates).sort((a, b) => a - b)
}

onEveryBackend('select', (backend) => {
  async function check(lists: readonly (readonly number[])[], candidates: number, bounds: Bounds) {
    const { ids } = await runOne(backend(), 'select', job(lists, candidates, bounds))
    expectSame(
      ids.u32,
      lists.flatMap((list) => best(list, candidates)),
      `ids of ${candidates}`,
    )
  }

  it.each([1, 15, 16, 17, 257, 777, 2000])('takes the best of %i, steps 1 and 2', async (count) => {
    for (const C of new Set([1, Math.ceil(count / 20), Math.ceil(count / 3), count]))
      for (const bounds of [SIGNS, WEIGHTED, VOTES])
        await check(draws(count, 3, bounds, bounds === VOTES ? 48 : 200), C, bounds)
  })

  it('keeps its order over many chunks and tiles', async () => {
    for (const [count, C] of [
      [20_000, 1_000],
      [70_001, 3_500],
    ])
      await check(draws(count, 2, SIGNS), C, SIGNS)
  })

  it('gives ties to the lower index', async () => {
    for (const C of [1, 2, 100, 776, 777]) {
      await check([new Array(777).fill(4), new Array(777).fill(-6)], C, SIGNS)
      await check(draws(777, 2, VOTES, 1), C, VOTES)
      await check(draws(777, 2, SIGNS, 2), C, SIGNS)
    }
  })

  it('takes scores at both bounds, negative ones alone too', async () => {
    const edges = Array.from({ length: 100 }, (_, n) => (n % 3 === 0 ? SIGNS.lo : SIGNS.hi))
    for (const C of [1, 66, 67, 99]) await check([edges, edges.toReversed()], C, SIGNS)
    await check(draws(333, 2, WEIGHTED, 40, -1500), 50, WEIGHTED)
    await check([new Array(50).fill(WEIGHTED.lo)], 7, WEIGHTED)
  })

  it('takes the one late key that stands out', async () => {
    const list = new Array<number>(1999).fill(0)
    list[1998] = 12
    await check([list], 1, VOTES)
    await check([list], 3, VOTES)
  })

  it('covers the widest range, D = 256', async () => {
    const wide = { lo: -3840, hi: 3840, step: 1 }
    for (const C of [1, 90, 650]) await check(draws(700, 2, wide, 3840), C, wide)
  })

  it('agrees with a sort for any scores', async () => {
    const lists = fc.array(fc.integer({ min: 0, max: 24 }), { minLength: 1, maxLength: 600 })
    await fc.assert(
      fc.asyncProperty(lists, fc.nat(), async (list, c) => check([list], 1 + (c % list.length), VOTES)),
      { numRuns: 15 },
    )
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(
      backend(),
      'select',
      job(draws(777, 2, SIGNS), 40, SIGNS),
      job(draws(90, 3, VOTES, 48), 33, VOTES),
    ))
})

describe('select, the reference', () => {
  it('fills every head to the last id and no further', () => {
    const given = job([new Array(20).fill(1), new Array(20).fill(2)], 5, VOTES)
    expect([...oracle('select', given).ids.u32]).toEqual([0, 1, 2, 3, 4, 0, 1, 2, 3, 4])
  })
})
