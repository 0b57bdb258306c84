import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import { butterflies, exponentOf, type RotateJob } from '../../sdk/kernels/rotate.ts'
import { onEveryBackend } from '../support/backends.ts'
import { adversarialKeys, gaussians, HEAD_DIMS, poisoned, random, rotationOf } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable, expectSame } from '../support/repeat.ts'

/** A job over rows of `d`, given one after another. */
function job(x: Float32Array, d: number, seed = 42): RotateJob<Bytes> {
  const rows = x.length / d
  const rotation = rotationOf(d, seed)
  return { x: Bytes.of(x), rows, rotation, y: poisoned(rows * rotation.D * 4), exponents: poisoned(rows * 4) }
}

function rows(d: number, count: number, seed = d): Float32Array {
  const next = random(seed)
  const out = gaussians(next, count * d)
  adversarialKeys(seed, d).forEach((key, i) => {
    if (i < count - 1) out.set(key, i * d)
  })
  return out
}

/** The transform by its definition, Sylvester order, in f64. */
function hadamard(x: ArrayLike<number>): Float64Array {
  const parity = (bits: number) => [...bits.toString(2)].filter((c) => c === '1').length & 1
  return Float64Array.from({ length: x.length }, (_, i) => {
    let sum = 0
    for (let j = 0; j < x.length; j++) sum += parity(i & j) ? -x[j] : x[j]
    return sum
  })
}

onEveryBackend('rotate', (backend) => {
  /** What |y| holds for two equal coordinates, whose sum is 2 or 0, and one smaller by that factor. */
  async function sizes(large: number, factor: number): Promise<Set<number>> {
    const x = new Float32Array(16)
    x.set([large, large, large * factor])
    const { y } = await runOne(backend(), 'rotate', job(x, 16))
    return new Set(y.f32.map(Math.abs))
  }

  it.each(HEAD_DIMS)('gives the reference bits at d = %i, hard rows included', async (d) => {
    for (const count of [1, 15, 17]) {
      const want = oracle('rotate', job(rows(d, count), d))
      const got = await runOne(backend(), 'rotate', job(rows(d, count), d))
      expectSame(got.exponents.i32, want.exponents.i32, 'exponent')
      expectSame(got.y.u32, want.y.u32, 'bits of y')
    }
  })

  it('gives the reference bits for any finite row', async () => {
    const finite = fc.float({ noNaN: true, noDefaultInfinity: true })
    const row = fc.array(finite, { minLength: 80, maxLength: 80 })
    await fc.assert(
      fc.asyncProperty(row, fc.nat(), async (values, seed) => {
        const given = job(Float32Array.from(values), 80, seed)
        const got = await runOne(backend(), 'rotate', given)
        expectSame(got.y.u32, oracle('rotate', given).y.u32, 'bits of y')
      }),
      { numRuns: 12 },
    )
  })

  it('neither overflows nor underflows', async () => {
    for (const scale of [3e38, 1.2e-38, 1]) {
      const next = random(7)
      const x = Float32Array.from({ length: 256 }, () => (next() < 0.5 ? -scale : scale))
      const { y, exponents } = await runOne(backend(), 'rotate', job(x, 256))
      const length = Math.hypot(...y.f32) * 2 ** exponents.i32[0]
      expect(length / (16 * Math.hypot(...x))).toBeCloseTo(1, 6)
    }
  })

  it('drops what is below 2⁻⁶⁰ of the largest coordinate, and nothing above', async () => {
    expect(await sizes(4, 2 ** -60)).toEqual(new Set([2, 2 ** -60]))
    expect(await sizes(4, 1.99 * 2 ** -61)).toEqual(new Set([0, 2]))
  })

  it('drops subnormal coordinates beside small normal ones', async () => {
    expect(await sizes(2 ** -120, 2 ** -6)).toEqual(new Set([2 + 2 ** -6, 2 - 2 ** -6, 2 ** -6]))
    expect(await sizes(2 ** -120, 2 ** -7)).toEqual(new Set([0, 2]))
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(backend(), 'rotate', job(rows(96, 33), 96), job(rows(32, 5), 32)))
})

describe('rotate, the reference', () => {
  it.each([8, 64, 128, 256])('makes D·log2(D) additions at D = %i', (D) => {
    let additions = 0
    butterflies(gaussians(random(1), D), 0, D, (a, b) => {
      additions++
      return a + b
    })
    expect(additions).toBe(D * Math.log2(D))
    if (D === 128) expect(additions).toBe(896)
  })

  it.each(HEAD_DIMS)('is the signed Hadamard matrix at d = %i', (d) => {
    const given = job(rows(d, 20), d)
    const { y, exponents } = oracle('rotate', given)
    const { D, signs } = given.rotation
    for (let r = 0; r < given.rows; r++) {
      const unit = 2 ** -exponents.i32[r]
      const normal = (v: number) => (Math.abs(v) < 2 ** -126 || Math.abs(v * unit) < 2 ** -60 ? 0 : v * unit)
      const x = Float64Array.from({ length: D }, (_, j) => (j < d ? normal(given.x.f32[r * d + j]) * signs.i8[j] : 0))
      const size = x.reduce((sum, v) => sum + Math.abs(v), 0)
      expectNear(y.f32.subarray(r * D, (r + 1) * D), hadamard(x), 1e-6 * size, `row ${r}`)
    }
  })

  it('keeps inner products: y·y′ = D · x·x′', () => {
    const given = job(gaussians(random(3), 2 * 192), 192)
    const { y, exponents } = oracle('rotate', given)
    const dot = (v: Float32Array, half: number) => {
      let sum = 0
      for (let j = 0; j < half; j++) sum += v[j] * v[half + j]
      return sum
    }
    const unit = 2 ** (exponents.i32[0] + exponents.i32[1])
    expect((dot(y.f32, 256) * unit) / 256).toBeCloseTo(dot(given.x.f32, 192), 4)
  })

  it('never makes a −0, which would carry a sign bit that another backend may lose', () => {
    const { y } = oracle('rotate', job(rows(128, 20), 128))
    expect(y.u32.includes(0x80000000)).toBe(false)
  })

  it('reads the exponent of the largest coordinate from the bits', () => {
    const exponent = (...x: number[]) => exponentOf(Float32Array.from(x), 0, x.length)
    expect([exponent(0, 0), exponent(1e-40, -1e-39), exponent(-0)]).toEqual([0, 0, 0])
    expect([exponent(1), exponent(-2, 1.99), exponent(0.99)]).toEqual([0, 1, -1])
    expect([exponent(3.4028235e38), exponent(1.17549435e-38)]).toEqual([127, -126])
  })
})
