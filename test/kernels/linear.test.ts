import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import { type Dtype, toF32 } from '../../sdk/dtype.ts'
import type { LinearJob } from '../../sdk/kernels/linear.ts'
import { onEveryBackend } from '../support/backends.ts'
import { DTYPES, gaussians, poisoned, random, rowsOf } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable, expectSame } from '../support/repeat.ts'

const TOKENS = [1, 2, 7, 8, 9, 33, 130]

interface Case {
  tokens: number
  inputs?: number
  outputs?: number
  dtype?: Dtype
  bias?: boolean
  add?: boolean
  seed?: number
}

/** Columns of unlike size and a row that others cancel against, as activations of a model have them. */
function job({ tokens, inputs = 72, outputs = 37, dtype = 'bf16', bias, add, seed = 0 }: Case): LinearJob<Bytes> {
  const next = random(seed + tokens * 7919 + inputs * 31 + outputs)
  const input = gaussians(next, tokens * inputs).map((x, i) => (i % inputs === 3 ? x * 40 : x))
  const weights = gaussians(next, outputs * inputs, 0.05)
  const old = add ? Bytes.of(gaussians(next, tokens * outputs, 3)) : poisoned(tokens * outputs * 4)
  return {
    input: Bytes.of(input),
    tokens,
    weights: rowsOf(weights, 1, inputs, dtype).buf,
    dtype,
    inputs,
    outputs,
    ...(bias ? { bias: Bytes.of(gaussians(next, outputs)) } : {}),
    add: add ?? false,
    output: old,
  }
}

/** Σ |x · w| of every output, with the bias and what was there. */
function sizes({ input, tokens, weights, dtype, inputs, outputs, bias, add, output }: LinearJob<Bytes>): Float64Array {
  const w = new Float32Array(inputs * outputs)
  toF32(dtype, dtype === 'f32' ? weights.f32 : weights.u16, 0, w.length, w)
  return Float64Array.from({ length: tokens * outputs }, (_, i) => {
    const [t, o] = [Math.floor(i / outputs), i % outputs]
    let sum = (bias ? Math.abs(bias.f32[o]) : 0) + (add ? Math.abs(output.f32[i]) : 0)
    for (let j = 0; j < inputs; j++) sum += Math.abs(input.f32[t * inputs + j] * w[o * inputs + j])
    return sum
  })
}

onEveryBackend('linear', (backend) => {
  async function check(given: LinearJob<Bytes>): Promise<LinearJob<Bytes>> {
    const size = sizes(given)
    const [got, want] = [await runOne(backend(), 'linear', given), oracle('linear', given)]
    expectNear(got.output.f32, want.output.f32, (i) => 1e-5 * size[i], 'output')
    return got
  }

  it.each(DTYPES)('multiplies %s weights for 1 to 130 tokens', async (dtype) => {
    for (const tokens of TOKENS) await check(job({ tokens, dtype }))
  })

  it.each(TOKENS)('adds a bias, and to what is there, for %i tokens', async (tokens) => {
    for (const [bias, add] of [
      [true, false],
      [false, true],
      [true, true],
    ])
      await check(job({ tokens, bias, add, inputs: 40, outputs: 131 }))
  })

  it.each([
    [8, 1],
    [8, 300],
    [16, 129],
    [384, 33],
    [1032, 6],
    [2056, 5],
    [4104, 3],
    [9000, 2],
  ])('takes %i inputs and %i outputs', async (inputs, outputs) => {
    for (const tokens of [1, 3, 34]) await check(job({ tokens, inputs, outputs }))
  })

  it('overwrites what is not a number', async () => {
    for (const tokens of [2, 40]) {
      const output = Bytes.of(new Float32Array(tokens * 37).fill(Number.NaN))
      await check({ ...job({ tokens }), output })
    }
  })

  it.each(DTYPES)('reads every weight exactly, subnormal ones of 16 bits too: %s', async (dtype) => {
    const [inputs, outputs] = [32, 40]
    const small = gaussians(random(5), outputs * inputs, dtype === 'f16' ? 1e-5 : 1)
    const weights = rowsOf(small, 1, inputs, dtype).buf
    const w = new Float32Array(outputs * inputs)
    toF32(dtype, dtype === 'f32' ? weights.f32 : weights.u16, 0, w.length, w)
    // Token j picks column j.
    for (const [tokens, first] of [
      [8, 24],
      [33, 0],
    ]) {
      const pick = Float32Array.from({ length: tokens * inputs }, (_, i) =>
        i % inputs === (first + Math.floor(i / inputs)) % inputs ? 1 : 0,
      )
      const given = { ...job({ tokens, inputs, outputs, dtype }), input: Bytes.of(pick), weights }
      const { output } = await runOne(backend(), 'linear', given)
      const want = Float32Array.from(
        { length: tokens * outputs },
        (_, i) => w[(i % outputs) * inputs + ((first + Math.floor(i / outputs)) % inputs)],
      )
      expectSame(output.f32, want, 'output')
    }
  })

  it('gives a token what it gets among others', async () => {
    const all = job({ tokens: 130, inputs: 264, outputs: 21 })
    const size = sizes(all)
    const { output } = await check(all)
    for (const [from, count] of [
      [0, 1],
      [17, 2],
      [120, 9],
      [64, 33],
    ]) {
      const input = Bytes.of(all.input.f32.subarray(from * 264, (from + count) * 264))
      const few = await runOne(backend(), 'linear', { ...all, input, tokens: count, output: poisoned(count * 21 * 4) })
      const want = output.f32.subarray(from * 21, (from + count) * 21)
      expectNear(few.output.f32, want, (i) => 1e-5 * size[from * 21 + i], 'output')
    }
  })

  it('takes any shape', () =>
    fc.assert(
      fc.asyncProperty(
        fc.record({
          tokens: fc.integer({ min: 1, max: 70 }),
          inputs: fc.integer({ min: 1, max: 40 }).map((n) => 8 * n),
          outputs: fc.integer({ min: 1, max: 200 }),
          dtype: fc.constantFrom(...DTYPES),
          bias: fc.boolean(),
          add: fc.boolean(),
          seed: fc.nat(),
        }),
        async (given) => void (await check(job(given))),
      ),
      { numRuns: 15 },
    ))

  it('repeats to the bit, in a batch and alone', async () => {
    await expectRepeatable(
      backend(),
      'linear',
      job({ tokens: 3, outputs: 50 }),
      job({ tokens: 3, outputs: 9, add: true }),
    )
    await expectRepeatable(backend(), 'linear', job({ tokens: 65, dtype: 'f16' }), job({ tokens: 35, dtype: 'f16' }))
    await expectRepeatable(backend(), 'linear', job({ tokens: 1, inputs: 520 }), job({ tokens: 12, dtype: 'f32' }))
  })
})

describe('linear, the reference', () => {
  it('is x · Wᵀ + bias + what was there', () => {
    const given: LinearJob<Bytes> = {
      input: Bytes.of(Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, -1)),
      tokens: 2,
      weights: Bytes.of(Float32Array.of(1, 0, 0, 0, 0, 0, 0, 2, 1, 1, 1, 1, 1, 1, 1, 1)),
      dtype: 'f32',
      inputs: 8,
      outputs: 2,
      bias: Bytes.of(Float32Array.of(100, 200)),
      add: true,
      output: Bytes.of(Float32Array.of(1000, 2000, 3000, 4000)),
    }
    expect([...oracle('linear', given).output.f32]).toEqual([1117, 2236, 3098, 4199])
  })
})
