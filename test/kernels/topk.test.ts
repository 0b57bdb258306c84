import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import type { TopkJob } from '../../sdk/kernels/topk.ts'
import { onEveryBackend } from '../support/backends.ts'
import { gaussians, pick, poisoned, random } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectRepeatable, expectSame } from '../support/repeat.ts'

/** @param below ids are drawn below it, ascending in each head; without it they are the indices */
function job(values: Float32Array, heads: number, k: number, below?: number): TopkJob<Bytes> {
  const count = values.length / heads
  const next = random(count)
  const ids =
    below && Bytes.of(Uint32Array.from(Array.from({ length: heads }, () => [...pick(next, below, count)]).flat()))
  return {
    values: Bytes.of(values),
    ids: ids || null,
    heads,
    count,
    k,
    topIds: poisoned(heads * k * 4),
    topValues: poisoned(heads * k * 4),
  }
}

const draws = (count: number, heads = 1) => gaussians(random(count), count * heads)

onEveryBackend('topk', (backend) => {
  async function check(given: TopkJob<Bytes>) {
    const [got, want] = [await runOne(backend(), 'topk', given), oracle('topk', given)]
    expectSame(got.topIds.u32, want.topIds.u32, 'id')
    expectSame(got.topValues.f32, want.topValues.f32, 'value')
    return got
  }

  it.each([1, 17, 100, 777, 2000])('takes the best of %i', async (count) => {
    for (const k of new Set([1, Math.min(count, 100), count])) {
      await check(job(draws(count, 2), 2, k))
      await check(job(draws(count, 2), 2, k, 3 * count))
    }
  })

  it('takes a few of many, ties included', async () => {
    const many = draws(9000, 2)
    for (const k of [1, 2, 50, 100, 256]) {
      await check(job(many, 2, k, 20_000))
      await check(
        job(
          many.map((v) => Math.round(v * 20)),
          2,
          k,
        ),
      )
    }
  })

  it('gives ties to the lower id', async () => {
    for (const k of [1, 100, 300]) {
      await check(job(new Float32Array(300).fill(-2.5), 1, k, 900))
      await check(
        job(
          draws(300).map((v) => Math.round(v)),
          1,
          k,
        ),
      )
      await check(
        job(
          draws(300).map((v) => Math.sign(v) * 7),
          1,
          k,
          512,
        ),
      )
    }
  })

  it('holds −0 and 0 equal', async () => {
    const zeros = Float32Array.from({ length: 64 }, (_, i) => (i % 3 === 0 ? 0 : -0))
    const { topIds } = await check(job(zeros, 1, 10))
    expect([...topIds.u32]).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    zeros[50] = 1e-30
    zeros[0] = -1e-30
    await check(job(zeros, 1, 64))
  })

  it('orders negative values and values of every size', async () => {
    await check(
      job(
        draws(200).map((v) => -Math.abs(v)),
        1,
        20,
      ),
    )
    await check(
      job(
        draws(200).map((v) => v * 10 ** Math.round(v * 9)),
        1,
        200,
      ),
    )
    const neighbours = new Float32Array(97)
    new Uint32Array(neighbours.buffer).forEach((_, i, bits) => {
      bits[i] = 0x3f800000 + ((i * 29) % 97)
    })
    await check(job(neighbours, 1, 97))
    await check(
      job(
        neighbours.map((v) => -v),
        1,
        97,
      ),
    )
    await check(job(Float32Array.from([3.4028235e38, -3.4028235e38, 0, 3.4028233e38]), 1, 4))
  })

  it('agrees with a sort for any values', async () => {
    const value = fc.oneof(fc.integer({ min: -3, max: 3 }), fc.float({ noNaN: true, noDefaultInfinity: true }))
    await fc.assert(
      fc.asyncProperty(fc.array(value, { minLength: 1, maxLength: 300 }), fc.nat(), async (list, k) => {
        const normal = list.map((v) => (Math.abs(v) < 2 ** -126 ? 0 : v))
        await check(job(Float32Array.from(normal), 1, 1 + (k % list.length)))
      }),
      { numRuns: 15 },
    )
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(backend(), 'topk', job(draws(777, 2), 2, 100, 5000), job(draws(40, 3), 3, 7)))
})

describe('topk, the reference', () => {
  it('sorts best first and carries the ids', () => {
    const given = { ...job(Float32Array.from([1, 3, 3, -2]), 1, 3), ids: Bytes.of(Uint32Array.from([4, 9, 11, 70])) }
    const { topIds, topValues } = oracle('topk', given)
    expect([...topIds.u32]).toEqual([9, 11, 4])
    expect([...topValues.f32]).toEqual([3, 3, 1])
  })
})
