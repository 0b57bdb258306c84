import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import type { GateJob } from '../../sdk/kernels/gate.ts'
import { onEveryBackend } from '../support/backends.ts'
import { gaussians, poisoned, random } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable, expectSame } from '../support/repeat.ts'

function job(count: number, spread = 3): GateJob<Bytes> {
  const next = random(count)
  const [gate, up] = [gaussians(next, count, spread), gaussians(next, count)]
  return { gate: Bytes.of(gate), up: Bytes.of(up), count, output: poisoned(count * 4) }
}

onEveryBackend('gate', (backend) => {
  async function check(given: GateJob<Bytes>): Promise<GateJob<Bytes>> {
    const [got, want] = [await runOne(backend(), 'gate', given), oracle('gate', given)]
    // Below e^-30 of the product the absolute error counts.
    const most = (i: number) =>
      1e-5 * Math.abs(want.output.f32[i]) + 1e-13 * Math.abs(given.gate.f32[i] * given.up.f32[i])
    expectNear(got.output.f32, want.output.f32, most, 'output')
    return got
  }

  it.each([1, 3, 4, 7, 8, 255, 256, 257, 1024, 12_345])('gates %i values', async (count) => {
    await check(job(count))
    await check(job(count, 30))
  })

  it('is right at both ends and at zero', async () => {
    const ends = [0, -0, 1e-30, -1e-30, 20, -20, 87, -87, 88.8, -88.8, 104, -104, 1e4, -1e4, 1e30, -1e30]
    const gate = Bytes.of(Float32Array.from(ends))
    const up = Bytes.of(new Float32Array(ends.length).fill(-1.5))
    const { output } = await check({ gate, up, count: ends.length, output: poisoned(ends.length * 4) })
    expect(output.f32.every(Number.isFinite)).toBe(true)
    expect(output.f32[12]).toBe(-1.5e4)
    expect(Math.abs(output.f32[13])).toBe(0)
  })

  it('may write over the gate', async () => {
    const given = job(1000)
    const apart = await check(given)
    const gate = Bytes.of(given.gate.u8)
    const over = await runOne(backend(), 'gate', { ...given, gate, output: gate })
    expectSame(over.output.u32, apart.output.u32, 'bits of the output')
  })

  it('repeats to the bit, in a batch and alone', () => expectRepeatable(backend(), 'gate', job(300), job(4000)))
})

describe('gate, the reference', () => {
  it('is x / (1 + e^−x) · up', () => {
    const [gate, up] = [Bytes.of(Float32Array.of(0, 1, -2)), Bytes.of(Float32Array.of(5, 2, -3))]
    const { output } = oracle('gate', { gate, up, count: 3, output: new Bytes(12) })
    expectNear(output.f32, [0, 2 / (1 + Math.exp(-1)), 6 / (1 + Math.exp(2))], 1e-6, 'output')
  })
})
