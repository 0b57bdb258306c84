import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import type { RmsNorm } from '../../sdk/kernels/norm.ts'
import type { RopeJob } from '../../sdk/kernels/rope.ts'
import { onEveryBackend } from '../support/backends.ts'
import { gaussians, HEAD_DIMS, poisoned, random } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable, expectSame } from '../support/repeat.ts'

/** Cosines and sines of positions first, first + 1, …, as a host makes them: angles in f64. */
function tableOf(tokens: number, d: number, first: number): Bytes {
  const table = new Float32Array(tokens * d)
  for (let t = 0; t < tokens; t++)
    for (let j = 0; j < d / 2; j++) {
      const angle = (first + t) * 1e6 ** ((-2 * j) / d)
      table[t * d + j] = Math.cos(angle)
      table[t * d + d / 2 + j] = Math.sin(angle)
    }
  return Bytes.of(table)
}

function job(outer: number, inner: number, d: number, turned?: 'outer' | 'inner', first = 0): RopeJob<Bytes> {
  const input = Bytes.of(gaussians(random(outer * 977 + inner * 31 + d), outer * inner * d))
  const table = turned ? { table: tableOf(turned === 'outer' ? outer : inner, d, first) } : {}
  const output = poisoned(outer * inner * d * 4)
  return { input, outer, inner, d, ...table, tokensAxis: turned ?? 'outer', output }
}

/** The job with a norm of its rows. */
function normed(given: RopeJob<Bytes>): RopeJob<Bytes> {
  const weight = Bytes.of(gaussians(random(given.d), given.d, 0.3).map((x) => x + 1))
  return { ...given, norm: { weight, epsilon: 1e-6 } }
}

function normalized({ input, outer, inner, d }: RopeJob<Bytes>, norm: RmsNorm<Bytes>): Float32Array {
  const output = poisoned(input.bytes)
  return oracle('norm', { ...norm, input, rows: outer * inner, width: d, output }).output.f32
}

onEveryBackend('rope', (backend) => {
  async function check(given: RopeJob<Bytes>): Promise<RopeJob<Bytes>> {
    const [got, want] = [await runOne(backend(), 'rope', given), oracle('rope', given)]
    const { outer, inner, d } = given
    const x = given.norm ? normalized(given, given.norm) : given.input.f32
    // Relative to the length of the pair, which turning keeps.
    const most = (i: number) => {
      const [row, j] = [Math.floor(i / d), i % (d / 2)]
      const from = ((row % outer) * inner + Math.floor(row / outer)) * d + j
      return 1e-5 * Math.hypot(x[from], x[from + d / 2])
    }
    expectNear(got.output.f32, want.output.f32, most, 'output')
    return got
  }

  it.each(HEAD_DIMS)('turns and transposes rows of %i', async (d) => {
    for (const tokens of [1, 2, 7, 9, 33])
      for (const heads of [1, 3, 8]) {
        await check(job(tokens, heads, d, 'outer', 100))
        await check(job(heads, tokens, d, 'inner', 5))
      }
  })

  it('turns by positions near a million', () => check(job(130, 2, 64, 'outer', 1_000_000)))

  it('moves bits as they are without a table', async () => {
    for (const [outer, inner, d] of [
      [1, 1, 8],
      [33, 4, 80],
      [4, 130, 16],
      [8, 9, 256],
    ]) {
      const given = job(outer, inner, d)
      given.input.u32.set([0x80000000, 1, 0x7f7fffff, 0x00400000], 0)
      const [got, want] = [await runOne(backend(), 'rope', given), oracle('rope', given)]
      expectSame(got.output.u32, want.output.u32, 'bits of the output')
    }
  })

  it('gives back what it took, turned by nothing and transposed twice', async () => {
    const given = job(9, 5, 48)
    const once = await runOne(backend(), 'rope', given)
    const again = { ...given, input: once.output, outer: 5, inner: 9, output: poisoned(9 * 5 * 48 * 4) }
    expectSame((await runOne(backend(), 'rope', again)).output.u32, given.input.u32, 'bits')
  })

  it.each(HEAD_DIMS)('normalizes rows of %i before it turns them', async (d) => {
    for (const [outer, inner] of [
      [1, 1],
      [1, 33],
      [7, 5],
      [70, 3],
    ]) {
      await check(normed(job(outer, inner, d, 'outer', 100)))
      await check(normed(job(outer, inner, d, 'inner', 5)))
      await check(normed(job(outer, inner, d)))
    }
  })

  it('normalizes rows of zeros, and very small and large ones', async () => {
    const given = normed(job(1, 4, 24, 'inner'))
    const scales = [0, 1e-12, 1e12, 1]
    await check({ ...given, input: Bytes.of(given.input.f32.map((x, i) => x * scales[Math.floor(i / 24)])) })
  })

  it('repeats to the bit beside jobs of other kinds', async () => {
    const given = job(9, 4, 80, 'outer', 3)
    await expectRepeatable(backend(), 'rope', normed(given), job(9, 2, 80))
    await expectRepeatable(backend(), 'rope', normed(given), job(9, 2, 80, 'outer', 3))
    await expectRepeatable(backend(), 'rope', normed(job(3, 2, 80)), job(2, 9, 80, 'inner', 3))
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(backend(), 'rope', job(9, 4, 80, 'outer', 3), job(9, 2, 80, 'outer', 3)))
})

describe('rope, the reference', () => {
  it('turns pairs half a row apart by the angle of their token', () => {
    const input = Bytes.of(Float32Array.from({ length: 16 }, (_, i) => i + 1))
    const quarter = Float32Array.of(1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1)
    const shape = { outer: 1, inner: 2, d: 8, table: Bytes.of(quarter), tokensAxis: 'inner' as const }
    const { output } = oracle('rope', { input, ...shape, output: new Bytes(64) })
    expect([...output.f32]).toEqual([1, 2, 3, 4, 5, 6, 7, 8, -13, -14, -15, -16, 9, 10, 11, 12])
  })
})
