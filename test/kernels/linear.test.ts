import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import { type Dtype, toF32 } from '../../sdk/dtype.ts'
import { FUSED_TOKENS, type LinearJob } from '../../sdk/kernels/linear.ts'
import type { RmsNorm } from '../../sdk/kernels/norm.ts'
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

/** A norm and an up matrix for a job. */
function fusedOf({ inputs, outputs, dtype }: LinearJob<Bytes>) {
  const next = random(inputs * 13 + outputs)
  const weight = Bytes.of(gaussians(next, inputs, 0.3).map((x) => x + 1))
  const gated = rowsOf(gaussians(next, outputs * inputs, 0.05), 1, inputs, dtype).buf
  return { norm: { weight, epsilon: 1e-6 }, gated }
}

/** The input's rows normalized, rounded to f32. */
function normalized({ input, tokens, inputs }: LinearJob<Bytes>, norm: RmsNorm<Bytes>): Bytes {
  const output = poisoned(input.bytes)
  return oracle('norm', { ...norm, input, rows: tokens, width: inputs, output }).output
}

/** Σ |x · w| of every output, with the bias and what was there. */
function sizes(job: LinearJob<Bytes>): Float64Array {
  const { tokens, weights, dtype, inputs, outputs, bias, add, output } = job
  const input = job.norm ? normalized(job, job.norm) : job.input
  const w = new Float32Array(inputs * outputs)
  toF32(dtype, dtype === 'f32' ? weights.f32 : weights.u16, 0, w.length, w)
  return Float64Array.from({ length: tokens * outputs }, (_, i) => {
    const [t, o] = [Math.floor(i / outputs), i % outputs]
    let sum = (bias ? Math.abs(bias.f32[o]) : 0) + (add ? Math.abs(output.f32[i]) : 0)
    for (let j = 0; j < inputs; j++) sum += Math.abs(input.f32[t * inputs + j] * w[o * inputs + j])
    return sum
  })
}

onEveryBackend('linear', (backend, _, { fewer }) => {
  async function check(given: LinearJob<Bytes>): Promise<LinearJob<Bytes>> {
    const size = sizes(given)
    const [got, want] = [await runOne(backend(), 'linear', given), oracle('linear', given)]
    expectNear(got.output.f32, want.output.f32, (i) => 1e-5 * size[i], 'output')
    return got
  }

  const others = fewer('token counts with f32 and f16', TOKENS, [2, 33])
  it.each(DTYPES)('multiplies %s weights for 1 to 130 tokens', async (dtype) => {
    for (const tokens of dtype === 'bf16' ? TOKENS : others) await check(job({ tokens, dtype }))
  })

  it.each(TOKENS)('adds a bias, and to what is there, for %i tokens', async (tokens) => {
    for (const [bias, add] of [
      [true, false],
      [false, true],
      [true, true],
    ])
      await check(job({ tokens, bias, add, inputs: 40, outputs: 131 }))
  })

  const wide = fewer('token counts with more than 256 inputs', [1, 3, 34], [1, 34])
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
    for (const tokens of inputs > 256 ? wide : [1, 3, 34]) await check(job({ tokens, inputs, outputs }))
  })

  it('takes many inputs of three tokens', async () => {
    await check(job({ tokens: 3, inputs: 4104, outputs: 3 }))
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
      [2, 24],
      [2, 26],
      [2, 28],
      [2, 30],
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

  /** Within 1e-5 of what the two sums of an output may weigh; silu is nowhere steeper than 1.1. */
  async function checkGated(given: LinearJob<Bytes>): Promise<void> {
    const { gated: up, ...plain } = given
    const input = given.norm ? normalized(given, given.norm) : given.input
    const alone = { ...plain, input, norm: undefined }
    const other = { ...alone, weights: up! }
    const [a, b] = [oracle('linear', alone).output.f32, oracle('linear', other).output.f32]
    const [sizeA, sizeB] = [sizes(alone), sizes(other)]
    const silu = (x: number) => x / (1 + Math.exp(-x))
    const want = Float32Array.from(a, (x, i) => silu(x) * b[i])
    const most = (i: number) =>
      1e-5 * (1.1 * sizeA[i] * (Math.abs(b[i]) + 1e-5 * sizeB[i]) + Math.abs(silu(a[i])) * sizeB[i])
    const got = await runOne(backend(), 'linear', given)
    expectNear(got.output.f32, want, most, 'output')
    expectNear(got.output.f32, oracle('linear', given).output.f32, most, 'output beside the reference')
  }

  async function checkFused(given: LinearJob<Bytes>): Promise<void> {
    const { norm, gated } = fusedOf(given)
    await check({ ...given, norm })
    await checkGated({ ...given, gated })
    await checkGated({ ...given, norm, gated })
  }

  it.each(fewer('counts of fused tokens', [1, 3, 7, FUSED_TOKENS], [1, 7, FUSED_TOKENS]))(
    'normalizes and gates %i tokens',
    async (tokens) => {
      await checkFused(job({ tokens }))
      await checkFused(job({ tokens, inputs: 8, outputs: 1 }))
      await checkFused(job({ tokens, inputs: 64, outputs: 130 }))
    },
  )

  it.each([
    [264, 131, 'f32'],
    [2056, 6, 'f16'],
    [9000, 5, 'bf16'],
  ] as const)('normalizes and gates %i inputs for %i outputs of %s', async (inputs, outputs, dtype) => {
    const given = job({ tokens: 2, inputs, outputs, dtype })
    await checkGated({ ...given, ...fusedOf(given) })
  })

  it('normalizes beside a bias and on top of what is there', async () => {
    const given = job({ tokens: 7, bias: true, add: true })
    await check({ ...given, norm: fusedOf(given).norm })
  })

  it('normalizes rows of zeros, and very small and large ones', async () => {
    const given = job({ tokens: 5, inputs: 40 })
    const scales = [0, 1e-12, 1e12, 1, 1e-3]
    await checkFused({ ...given, input: Bytes.of(given.input.f32.map((x, i) => x * scales[Math.floor(i / 40)])) })
  })

  it('repeats fused to the bit, in a batch and alone', async () => {
    const [a, b] = [job({ tokens: 7, outputs: 50 }), job({ tokens: 7, outputs: 9 })]
    const { norm } = fusedOf(a)
    await expectRepeatable(backend(), 'linear', { ...a, norm }, { ...b, norm })
    await expectRepeatable(backend(), 'linear', { ...a, ...fusedOf(a) }, { ...b, ...fusedOf(b) })
    const wide = job({ tokens: 2, inputs: 2056, outputs: 6, dtype: 'f16' })
    await expectRepeatable(backend(), 'linear', { ...wide, ...fusedOf(wide) }, b)
  })

  it('refuses fused jobs of more tokens, and gates with a bias or a sum, before it writes', async () => {
    const given = job({ tokens: FUSED_TOKENS + 1 })
    const { norm, gated } = fusedOf(given)
    const few = job({ tokens: 1 })
    for (const wrong of [
      { ...given, norm },
      { ...given, gated },
      { ...few, gated, add: true },
      { ...few, gated, bias: Bytes.of(new Float32Array(37)) },
    ])
      await expect(runOne(backend(), 'linear', wrong)).rejects.toThrow(TypeError)
  })

  it('gives a token what it gets among others', async () => {
    const all = job({ tokens: 130, outputs: 21 })
    const size = sizes(all)
    const { output } = await check(all)
    for (const [from, count] of [
      [0, 1],
      [17, 2],
      [120, 9],
      [64, 33],
    ]) {
      const input = Bytes.of(all.input.f32.subarray(from * 72, (from + count) * 72))
      const few = await runOne(backend(), 'linear', { ...all, input, tokens: count, output: poisoned(count * 21 * 4) })
      const want = output.f32.subarray(from * 21, (from + count) * 21)
      expectNear(few.output.f32, want, (i) => 1e-5 * size[from * 21 + i], 'output')
    }
  })

  const kinds = DTYPES.map((dtype) => ({ dtype, widest: 320 }))
  const some = fewer('types of any shape', kinds, [{ dtype: 'bf16' as const, widest: 256 }])
  it('takes any shape', () =>
    fc.assert(
      fc.asyncProperty(
        fc.record({
          tokens: fc.integer({ min: 1, max: 70 }),
          width: fc.integer({ min: 1, max: 40 }).map((n) => 8 * n),
          outputs: fc.integer({ min: 1, max: 200 }),
          kind: fc.constantFrom(...some),
          bias: fc.boolean(),
          add: fc.boolean(),
          seed: fc.nat(),
        }),
        async ({ kind: { dtype, widest }, width, ...given }) =>
          void (await check(job({ ...given, dtype, inputs: Math.min(width, widest) }))),
      ),
      { numRuns: 15 },
    ))

  it('repeats to the bit, in a batch and alone', async () => {
    const few = [job({ tokens: 3, outputs: 50 }), job({ tokens: 3, outputs: 9, add: true })] as const
    await expectRepeatable(backend(), 'linear', ...few)
    await expectRepeatable(backend(), 'linear', job({ tokens: 65, dtype: 'f16' }), job({ tokens: 35, dtype: 'f16' }))
    await expectRepeatable(backend(), 'linear', job({ tokens: 1, inputs: 520 }), job({ tokens: 12 }))
    await expectRepeatable(backend(), 'linear', job({ tokens: 2, dtype: 'f32' }), job({ tokens: 2, outputs: 9 }))
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

  it('normalizes, then gates', () => {
    const row = (at: number, x: number) => Float32Array.from({ length: 8 }, (_, i) => (i === at ? x : 0))
    const given: LinearJob<Bytes> = {
      input: Bytes.of(Float32Array.of(2, -2, 2, 2, 2, 2, 2, 2)),
      tokens: 1,
      weights: Bytes.of(row(0, 1)),
      dtype: 'f32',
      inputs: 8,
      outputs: 1,
      norm: { weight: Bytes.of(Float32Array.of(3, 5, 1, 1, 1, 1, 1, 1)), epsilon: 0 },
      gated: Bytes.of(row(1, 2)),
      add: false,
      output: poisoned(4),
    }
    // Normalized: 3, −5, 1, …; silu(3) · −10.
    expect(oracle('linear', given).output.f32[0]).toBeCloseTo((3 / (1 + Math.exp(-3))) * -10, 5)
  })
})
