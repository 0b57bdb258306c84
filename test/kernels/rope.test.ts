import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
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

onEveryBackend('rope', (backend) => {
  async function check(given: RopeJob<Bytes>): Promise<RopeJob<Bytes>> {
    const [got, want] = [await runOne(backend(), 'rope', given), oracle('rope', given)]
    const { outer, inner, d } = given
    // Relative to the length of the pair, which turning keeps.
    const most = (i: number) => {
      const [row, j] = [Math.floor(i / d), i % (d / 2)]
      const from = ((row % outer) * inner + Math.floor(row / outer)) * d + j
      return 1e-5 * Math.hypot(given.input.f32[from], given.input.f32[from + d / 2])
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
