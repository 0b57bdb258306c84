import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import type { NormJob } from '../../sdk/kernels/norm.ts'
import { onEveryBackend } from '../support/backends.ts'
import { gaussians, poisoned, random } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable, expectSame } from '../support/repeat.ts'

/** One coordinate a hundred times the others, as the residual of a model has. */
function job(rows: number, width: number, epsilon = 1e-6): NormJob<Bytes> {
  const next = random(rows * 131 + width)
  const input = gaussians(next, rows * width).map((x, i) => (i % width === 5 ? x * 100 : x))
  const weight = gaussians(next, width).map((x) => 1 + 0.3 * x)
  const output = poisoned(rows * width * 4)
  return { input: Bytes.of(input), rows, width, weight: Bytes.of(weight), epsilon, output }
}

onEveryBackend('norm', (backend) => {
  async function check(given: NormJob<Bytes>): Promise<NormJob<Bytes>> {
    const [got, want] = [await runOne(backend(), 'norm', given), oracle('norm', given)]
    expectNear(got.output.f32, want.output.f32, (i) => 1e-5 * Math.abs(want.output.f32[i]), 'output')
    return got
  }

  it.each([8, 16, 72, 80, 128, 264, 384, 1000, 1024, 4096])('normalizes rows of %i', async (width) => {
    for (const rows of [1, 2, 7, 8, 9, 33, 130]) if (rows * width < 60_000) await check(job(rows, width))
  })

  it('normalizes the widest rows', () => check(job(3, 16_384)))

  it('minds epsilon where a row is small, and gives zeros for zeros', async () => {
    for (const [size, epsilon] of [
      [1e-3, 1e-5],
      [1e-6, 1e-6],
      [1e8, 1e-6],
    ]) {
      const given = job(4, 48, epsilon)
      await check({ ...given, input: Bytes.of(given.input.f32.map((x) => x * size)) })
    }
    const { output } = await check({ ...job(2, 48), input: new Bytes(2 * 48 * 4) })
    expect(output.f32.every((x) => x === 0)).toBe(true)
  })

  it('may write over its input', async () => {
    for (const [rows, width] of [
      [9, 128],
      [2, 4096],
    ]) {
      const given = job(rows, width)
      const apart = await check(given)
      const input = Bytes.of(given.input.u8)
      const over = await runOne(backend(), 'norm', { ...given, input, output: input })
      expectSame(over.output.u32, apart.output.u32, 'bits of the output')
    }
  })

  it('repeats to the bit, in a batch and alone', () => expectRepeatable(backend(), 'norm', job(9, 80), job(33, 88)))
})

describe('norm, the reference', () => {
  it('divides by the root of the mean of the squares', () => {
    const input = Bytes.of(Float32Array.of(3, -3, 3, -3, 3, -3, 3, -3))
    const weight = Bytes.of(Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8))
    const { output } = oracle('norm', { input, rows: 1, width: 8, weight, epsilon: 7, output: new Bytes(32) })
    expect([...output.f32]).toEqual([0.75, -1.5, 2.25, -3, 3.75, -4.5, 5.25, -6])
  })
})
