import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import type { LinearJob } from '../../sdk/kernels/linear.ts'
import { watchDispatches } from '../support/dispatches.ts'
import { openWebgpu, shareWebgpu } from '../support/gpu.ts'
import { DTYPES, gaussians, poisoned, random, rowsOf } from '../support/inputs.ts'
import { type HostJobs, runOne, type Verb } from '../support/jobs.ts'
import { expectSame } from '../support/repeat.ts'
import { refused } from '../support/sessions.ts'

/** A job that fits no binding gives the bytes that it gives in one. */
async function expectCutAlike<V extends Verb>(verb: V, job: HostJobs[V] & { output: Bytes }, maxBinding: number) {
  const [narrow, wide] = [await shareWebgpu({ maxBinding, maxWorkgroups: 40 }), await shareWebgpu()]
  const [got, want] = [await runOne(narrow, verb, job), await runOne(wide, verb, job)] as { output: Bytes }[]
  expectSame(got.output.u32, want.output.u32, `bits of ${verb}`)
  expect(want.output.u32.every((bits) => bits === 0xaaaaaaaa)).toBe(false)
  narrow.dispose()
  wide.dispose()
}

describe('model kernels on matrices wider than one binding', () => {
  const next = random(11)

  it.each(['f32', 'bf16'] as const)('linear cuts a matrix of %s by its rows', async (dtype) => {
    const [inputs, outputs] = [72, 1001]
    const weights = rowsOf(gaussians(next, inputs * outputs), 1, inputs, dtype).buf
    for (const tokens of [1, 9, 33]) {
      const input = Bytes.of(gaussians(next, tokens * inputs))
      const output = Bytes.of(gaussians(next, tokens * outputs))
      const bias = Bytes.of(gaussians(next, outputs))
      const job = { input, tokens, weights, dtype, inputs, outputs, bias, add: true, output }
      await expectCutAlike('linear', job, tokens * outputs * 4 + 512 < 40_000 ? 40_000 : 140_000)
    }
  })

  it('linear cuts gated matrices by their rows', async () => {
    const [inputs, outputs, tokens] = [72, 1001, 2]
    const matrix = () => rowsOf(gaussians(next, inputs * outputs), 1, inputs, 'bf16').buf
    const norm = { weight: Bytes.of(gaussians(next, inputs)), epsilon: 1e-6 }
    const job = {
      tokens,
      weights: matrix(),
      gated: matrix(),
      dtype: 'bf16' as const,
      inputs,
      outputs,
      norm,
      add: false,
    }
    const input = Bytes.of(gaussians(next, tokens * inputs))
    await expectCutAlike('linear', { ...job, input, output: poisoned(tokens * outputs * 4) }, 40_000)
  })

  it.each(DTYPES)('lookup finds ids in every part of a table of %s', async (dtype) => {
    const [rows, width] = [1500, 40]
    const table = rowsOf(gaussians(next, rows * width), 1, width, dtype).buf
    const ids = Bytes.of(Uint32Array.of(0, 1499, 700, 1500, 3, 0xffffffff, 699, 701, 1100))
    const output = poisoned(9 * width * 4)
    await expectCutAlike('lookup', { ids, tokens: 9, table, dtype, rows, width, output }, 20_000)
  })

  it('norm and gate cut activations', async () => {
    const [rows, width] = [210, 136]
    const input = Bytes.of(gaussians(next, rows * width))
    const weight = Bytes.of(gaussians(next, width))
    const shape = { rows, width, weight, epsilon: 1e-6 }
    await expectCutAlike('norm', { input, ...shape, output: poisoned(input.bytes) }, 20_000)
    await expectCutAlike('norm', { input, ...shape, output: input }, 20_000)
    const [gate, up] = [input, Bytes.of(gaussians(next, rows * width))]
    await expectCutAlike('gate', { gate, up, count: rows * width, output: poisoned(gate.bytes) }, 20_000)
    await expectCutAlike('gate', { gate, up, count: rows * width, output: gate }, 20_000)
  })

  it('refuses activations that no dispatch can see whole', async () => {
    const backend = await shareWebgpu({ maxBinding: 8192 })
    const input = new Bytes(65 * 40 * 4)
    const turned = runOne(backend, 'rope', {
      ...{ input, outer: 65, inner: 1, d: 40, tokensAxis: 'outer', output: poisoned(input.bytes) },
    })
    await refused(turned, 'out_of_range')
    backend.dispose()
  })
})

describe('jobs of one call of linear', () => {
  it('run as one dispatch where their buffers lie together, and give what each gives alone', async () => {
    const backend = await openWebgpu({ defaultLimits: true })
    const next = random(12)
    const [inputs, tokens] = [64, 2]
    const sizes = [96, 24, 24]
    const bytes = (together: string, scale: number) =>
      sizes.map((m) => ({ label: together, bytes: m * scale, together }))
    const weights = await backend.alloc(bytes('weights', inputs * 2))
    const outputs = await backend.alloc(bytes('outputs', tokens * 4))
    const alone = await backend.alloc(sizes.map((m) => ({ label: 'alone', bytes: m * tokens * 4 })))
    const [input] = await backend.alloc([{ label: 'input', bytes: tokens * inputs * 4 }])
    backend.write(input, 0, Bytes.of(gaussians(next, tokens * inputs)).u8)
    for (const [i, m] of sizes.entries())
      backend.write(weights[i], 0, rowsOf(gaussians(next, m * inputs), 1, inputs, 'bf16').buf.u8)
    const common = { input, tokens, dtype: 'bf16' as const, inputs, add: false }
    const job = (i: number, output: LinearJob['output']) => {
      return { ...common, weights: weights[i], outputs: sizes[i], output }
    }
    const dispatches = watchDispatches(backend.device)
    const encoder = backend.device.createCommandEncoder()
    const release = backend.recordInto(encoder, () => backend.linear(sizes.map((_, i) => job(i, outputs[i]))))
    backend.device.queue.submit([encoder.finish()])
    release()
    expect(dispatches).toEqual(['linear-few'])
    for (const i of sizes.keys()) backend.linear([job(i, alone[i])])
    for (const [i, m] of sizes.entries()) {
      const [got, want] = [await backend.read(outputs[i], 0, m * 8), await backend.read(alone[i], 0, m * 8)]
      expectSame(got, want, `bytes of job ${i}`)
      expect(got.some((byte) => byte !== 0)).toBe(true)
    }
    backend.dispose()
  })
})
