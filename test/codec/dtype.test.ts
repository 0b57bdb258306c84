import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  bf16ToF32,
  bitsF32,
  type Dtype,
  dtypeBytes,
  f16ToF32,
  f32Bits,
  f32ToBf16,
  f32ToF16,
  fromF32,
  toF32,
} from '../../sdk/dtype.ts'
import { expectSame } from '../support/repeat.ts'

/** The value of a pattern by the definition of an IEEE format with that many exponent and mantissa bits. */
function ieeeValue(bits: number, exponentBits: number, mantissaBits: number): number {
  const bias = 2 ** (exponentBits - 1) - 1
  const exponent = (bits >>> mantissaBits) % 2 ** exponentBits
  const mantissa = bits % 2 ** mantissaBits
  const sign = bits >>> (exponentBits + mantissaBits) ? -1 : 1
  if (exponent === 2 ** exponentBits - 1) return mantissa ? Number.NaN : sign * Number.POSITIVE_INFINITY
  if (exponent === 0) return sign * mantissa * 2 ** (1 - bias - mantissaBits)
  return sign * (2 ** mantissaBits + mantissa) * 2 ** (exponent - bias - mantissaBits)
}

const FORMATS = [
  { dtype: 'f16', encode: f32ToF16, decode: f16ToF32, exponentBits: 5, mantissaBits: 10, infinity: 0x7c00 },
  { dtype: 'bf16', encode: f32ToBf16, decode: bf16ToF32, exponentBits: 8, mantissaBits: 7, infinity: 0x7f80 },
] as const

/** The f32 just above or below a positive one. */
const beside = (v: number, step: 1 | -1) => bitsF32(f32Bits(v) + step)

describe.each(FORMATS)('$dtype', ({ dtype, encode, decode, exponentBits, mantissaBits, infinity }) => {
  it('decodes all 65,536 patterns', () => {
    const wide = new Float32Array(65536)
    toF32(
      dtype,
      Uint16Array.from(wide, (_, bits) => bits),
      0,
      65536,
      wide,
    )
    for (let bits = 0; bits < 65536; bits++) {
      const want = ieeeValue(bits, exponentBits, mantissaBits)
      if (!Object.is(decode(bits), want) || !Object.is(wide[bits], want))
        expect.fail(`pattern ${bits.toString(16)}: got ${decode(bits)}, want ${want}`)
    }
  })

  it('encodes every decoded pattern as itself, every NaN as a quiet NaN', () => {
    for (let bits = 0; bits < 65536; bits++) {
      const back = encode(decode(bits))
      const nan = (bits & 0x7fff) > infinity
      const right = nan ? (back & 0x7fff) > infinity : back === bits
      if (!right) expect.fail(`pattern ${bits.toString(16)}: came back as ${back.toString(16)}`)
    }
  })

  it('rounds every midpoint to even and its neighbours to the nearest', () => {
    for (const sign of [0, 0x8000])
      for (let bits = 0; bits < infinity; bits++) {
        const [lo, hi] = [decode(bits), bits + 1 === infinity ? 2 * decode(bits) - decode(bits - 1) : decode(bits + 1)]
        const middle = (lo + hi) / 2
        const even = bits & 1 ? bits + 1 : bits
        const minus = sign ? -1 : 1
        const seen = [beside(middle, -1), middle, beside(middle, 1)].map((v) => encode(minus * v) ^ sign)
        if (seen[0] !== bits || seen[1] !== even || seen[2] !== bits + 1)
          expect.fail(`between ${bits.toString(16)} and the next: got ${seen.map((b) => b.toString(16))}`)
      }
  })

  it('overflows to Inf of the same sign, and NaN to NaN', () => {
    for (const v of [3.4028235e38, Number.POSITIVE_INFINITY]) {
      expect(encode(v)).toBe(infinity)
      expect(encode(-v)).toBe(infinity | 0x8000)
    }
    for (const bits of [0x7f800001, 0xff800001, 0x7fc00000, 0xffffffff]) {
      const back = encode(bitsF32(bits))
      expect((back & 0x7fff) > infinity).toBe(true)
    }
  })

  it('keeps order and never moves a value by more than half a step', () => {
    const finite = fc.float({ noNaN: true, noDefaultInfinity: true, min: -60000, max: 60000 })
    fc.assert(
      fc.property(finite, finite, (a, b) => {
        const [x, y] = [Math.min(a, b), Math.max(a, b)]
        expect(decode(encode(x))).toBeLessThanOrEqual(decode(encode(y)))
        const step = 2 ** -(mantissaBits + 1) * Math.abs(a) + 2 ** -25
        expect(Math.abs(decode(encode(a)) - a)).toBeLessThanOrEqual(step)
      }),
    )
  })
})

describe('rows', () => {
  const patterns: Record<Dtype, ArrayLike<number>> = {
    f32: Float32Array.from([1, -0, 3e38, 1e-45]),
    f16: Uint16Array.from([0x3c00, 0x8000, 0x7bff, 1]),
    bf16: Uint16Array.from([0x3f80, 0x8000, 0x7f7f, 1]),
  }

  it.each(['f32', 'f16', 'bf16'] as const)('widens %s exactly, from and to any place', (dtype) => {
    const src = patterns[dtype]
    const out = new Float32Array(6).fill(7)
    toF32(dtype, src, 1, 3, out, 2)
    const want = [1, 2, 3].map((i) => (dtype === 'f32' ? src[i] : (dtype === 'f16' ? f16ToF32 : bf16ToF32)(src[i])))
    expectSame(out, [7, 7, ...want, 7], dtype)
    expect(Object.is(out[2], -0)).toBe(true)
    for (let i = 0; i < 4; i++) {
      const value = dtype === 'f32' ? src[i] : (dtype === 'f16' ? f16ToF32 : bf16ToF32)(src[i])
      expect(fromF32(dtype, value)).toBe(src[i])
    }
  })

  it('takes 4, 2 and 2 bytes an element', () => {
    expect((['f32', 'f16', 'bf16'] as const).map(dtypeBytes)).toEqual([4, 2, 2])
  })

  it('widens into a view that starts inside a buffer', () => {
    const buffer = new Float32Array(8)
    toF32('bf16', patterns.bf16, 0, 4, buffer.subarray(3, 7))
    expect(buffer[2]).toBe(0)
    expect(buffer[3]).toBe(1)
    expect(buffer[7]).toBe(0)
  })
})
