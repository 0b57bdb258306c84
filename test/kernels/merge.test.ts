import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import type { MergeJob } from '../../sdk/kernels/merge.ts'
import { attention, lseTolerance } from '../support/attention.ts'
import { onEveryBackend } from '../support/backends.ts'
import { gaussians, HEAD_DIMS, poisoned, random, rowsOf } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable } from '../support/repeat.ts'

const EMPTY = Number.NEGATIVE_INFINITY

/** What `attend` says of one part: its largest score, Σ exp, and the mean of V under the softmax. */
interface Part {
  readonly max: number
  readonly sum: number
  readonly mean: ArrayLike<number>
}

/** [parts][Hq] states into a job. */
function job(parts: readonly (readonly Part[])[], d: number): MergeJob<Bytes> {
  const queryHeads = parts[0].length
  const partials = new Bytes(parts.length * queryHeads * (d + 2) * 4)
  parts.flat().forEach(({ max, sum, mean }, i) => {
    for (let j = 0; j < d; j++) partials.f32[i * (d + 2) + j] = mean[j] * sum
    partials.f32[i * (d + 2) + d] = max
    partials.f32[i * (d + 2) + d + 1] = sum
  })
  return {
    partials,
    parts: parts.length,
    queryHeads,
    d,
    output: poisoned(queryHeads * d * 4),
    lse: poisoned(queryHeads * 4),
  }
}

/** Random states; about one in `holes` is empty. */
function draws(parts: number, queryHeads: number, d: number, holes = 4): Part[][] {
  const next = random(parts * 100 + queryHeads + d)
  const state = (): Part =>
    next() < 1 / holes
      ? { max: EMPTY, sum: 0, mean: new Float32Array(d) }
      : { max: 20 * (next() - 0.5), sum: 1 + 30 * next(), mean: gaussians(next, d) }
  return Array.from({ length: parts }, () => Array.from({ length: queryHeads }, state))
}

const flat = (d: number, value: number) => new Float32Array(d).fill(value)

onEveryBackend('merge', (backend) => {
  async function check(given: MergeJob<Bytes>) {
    const [got, want] = [await runOne(backend(), 'merge', given), oracle('merge', given)]
    expectNear(got.lse.f32, want.lse.f32, (i) => lseTolerance(want.lse.f32[i]), 'lse')
    expectNear(got.output.f32, want.output.f32, 1e-5, 'output')
    return got
  }

  it.each(HEAD_DIMS)('merges parts at d = %i', async (d) => {
    for (const parts of [1, 2, 7]) await check(job(draws(parts, 3, d), d))
  })

  it('merges many parts', async () => {
    await check(job(draws(65, 4, 64), 64))
    await check(job(draws(200, 1, 128, 2), 128))
  })

  it('gives 0 and −Inf for nothing, whatever the parts', async () => {
    for (const parts of [1, 3]) {
      const { output, lse } = await check(job(draws(parts, 2, 16, 1), 16))
      expect(new Set(output.f32)).toEqual(new Set([0]))
      expect([...lse.f32]).toEqual([EMPTY, EMPTY])
    }
  })

  it('ignores empty parts before, between and after', async () => {
    const full: Part = { max: 3, sum: 2, mean: flat(32, 0.5) }
    const none: Part = { max: EMPTY, sum: 0, mean: flat(32, 0) }
    const alone = await check(job([[full]], 32))
    for (const parts of [
      [none, full],
      [full, none],
      [none, none, full, none],
    ]) {
      const merged = await check(
        job(
          parts.map((part) => [part]),
          32,
        ),
      )
      expectNear(merged.output.f32, alone.output.f32, 1e-7, 'output')
      expectNear(merged.lse.f32, alone.lse.f32, 1e-6, 'lse')
    }
  })

  it('neither overflows nor loses the larger part where maxima lie far apart', async () => {
    const low: Part = { max: -1e4, sum: 5, mean: flat(64, 9) }
    const high: Part = { max: 1e4, sum: 2, mean: flat(64, -1) }
    for (const parts of [[low, high], [high, low], [low], [high, high]]) {
      const { output } = await check(
        job(
          parts.map((part) => [part]),
          64,
        ),
      )
      expect(output.f32[0]).toBeCloseTo(parts.length === 1 ? 9 : -1, 6)
    }
  })

  it('makes of any split what attention over the whole gives', async () => {
    const d = 16
    const next = random(8)
    const rows = () => rowsOf(gaussians(next, 40 * d), 1, d, 'f32')
    const [keys, values, query] = [rows(), rows(), gaussians(next, d, 3)]
    const positions = Array.from({ length: 40 }, (_, i) => i)
    const whole = attention(query, keys, values, 0, positions, 0.25)
    const cuts = fc.array(fc.integer({ min: 0, max: 40 }), { maxLength: 9 })
    await fc.assert(
      fc.asyncProperty(cuts, async (at) => {
        const edges = [0, ...at.sort((a, b) => a - b), 40]
        const parts = edges.slice(1).map((end, i): Part[] => {
          const { output, lse } = attention(query, keys, values, 0, positions.slice(edges[i], end), 0.25)
          return [{ max: lse, sum: lse === EMPTY ? 0 : 1, mean: output }]
        })
        const { output, lse } = await runOne(backend(), 'merge', job(parts, d))
        expectNear(output.f32, whole.output, 1e-6, 'output')
        expectNear(lse.f32, [whole.lse], 1e-5, 'lse')
      }),
      { numRuns: 15 },
    )
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(backend(), 'merge', job(draws(7, 4, 128), 128), job(draws(2, 3, 8), 8)))
})

describe('merge, the reference', () => {
  it('weighs parts by Σ exp at a common maximum, natural logarithm', () => {
    const parts: Part[] = [
      { max: 0, sum: 1, mean: flat(8, 1) },
      { max: Math.log(3), sum: 1, mean: flat(8, 5) },
    ]
    const { output, lse } = oracle(
      'merge',
      job(
        parts.map((part) => [part]),
        8,
      ),
    )
    expect(output.f32[0]).toBeCloseTo(4, 6)
    expect(lse.f32[0]).toBeCloseTo(Math.log(4), 6)
  })
})
