import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import { type Dtype, dtypeBytes, f16ToF32, f32ToBf16, f32ToF16, fromF32 } from '../../sdk/dtype.ts'
import { type StoreJob, store } from '../../sdk/kernels/store.ts'
import { onEveryBackend } from '../support/backends.ts'
import { DTYPES, gaussians, HEAD_DIMS, poisoned, random } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectRepeatable, expectSame } from '../support/repeat.ts'

const PAIRS = DTYPES.flatMap((from) => DTYPES.map((to) => [from, to] as const))

interface Case {
  from?: Dtype
  to?: Dtype
  d?: number
  heads?: number
  count: number
  at?: number
  /** Stored before. */
  refused?: number
}

/** A job over bit patterns of `from`, repeated over all heads and tokens; rows of stale memory. */
function job(bits: ArrayLike<number>, given: Case): StoreJob<Bytes> {
  const { from = 'f32', to = 'f32', d = 64, heads = 3, count, at = 0, refused = 0 } = given
  const tokens = poisoned(heads * count * d * dtypeBytes(from))
  const out = from === 'f32' ? tokens.u32 : tokens.u16
  for (let i = 0; i < heads * count * d; i++) out[i] = bits[i % bits.length]
  const cap = at + count + 3
  const rows = { buf: poisoned(heads * cap * d * dtypeBytes(to)), dtype: to, cap, d }
  return { tokens, dtype: from, heads, count, rows, at, refused: Bytes.of(Uint32Array.of(refused)) }
}

function patterns(dtype: Dtype, values: Float32Array): ArrayLike<number> {
  return dtype === 'f32' ? Bytes.of(values).u32 : Array.from(values, (x) => fromF32(dtype, x))
}

/** Bit patterns at every edge of rounding, range and sign. */
const F32_EDGES = [
  ...[0, 1, 0x7fffff, 0x800000, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f801000, 0x3f803000, 0x3f801001],
  ...[0x32ffffff, 0x33000000, 0x33000001, 0x33400000, 0x33c00000, 0x387fc000, 0x387fe000, 0x387fffff, 0x38800000],
  ...[0x477fe000, 0x477fefff, 0x477ff000, 0x47800000, 0x7f7f0000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff],
  ...[0x7f800000, 0x7f800001, 0x7fa00000, 0x7fc00000, 0x7fffffff],
].flatMap((bits) => [bits, (bits | 0x80000000) >>> 0])
const EVERY16 = Uint16Array.from({ length: 65536 }, (_, i) => i)

onEveryBackend('store', (backend) => {
  async function check(given: StoreJob<Bytes>): Promise<StoreJob<Bytes>> {
    const [got, want] = [await runOne(backend(), 'store', given), oracle('store', given)]
    expectSame(got.rows.buf.u8, want.rows.buf.u8, 'byte of the rows')
    expectSame(got.refused.u32, want.refused.u32, 'refused')
    return got
  }

  it.each(HEAD_DIMS)('gives the reference bytes at d = %i, and leaves other rows alone', async (d) => {
    const values = gaussians(random(d), 3 * 17 * d)
    for (const to of DTYPES)
      for (const [count, at] of [
        [1, 0],
        [17, 5],
      ])
        expect((await check(job(patterns('f32', values), { to, d, count, at }))).refused.u32[0]).toBe(0)
  })

  it.each(PAIRS)('stores %s as %s, odd counts and offsets', async (from, to) => {
    const values = gaussians(random(9), 2 * 7 * 80, 30)
    for (const [count, at] of [
      [1, 1],
      [7, 2],
    ])
      await check(job(patterns(from, values), { from, to, d: 80, heads: 2, count, at }))
  })

  it.each(DTYPES)('rounds every edge of f32 to %s', async (to) => {
    const got = await check(job(F32_EDGES, { to, d: 8, heads: 1, count: Math.ceil(F32_EDGES.length / 8) }))
    expect(got.refused.u32[0]).toBeGreaterThan(5)
  })

  it.each(PAIRS.filter(([from]) => from !== 'f32'))('takes every pattern of %s as %s', async (from, to) => {
    await check(job(EVERY16, { from, to, d: 256, heads: 2, count: 128 }))
  })

  it('gives the reference bytes for any bits', async () => {
    const words = fc.array(fc.nat({ max: 0xffffffff }), { minLength: 24, maxLength: 24 })
    await fc.assert(
      fc.asyncProperty(words, fc.constantFrom(...DTYPES), async (bits, to) => {
        await check(job(bits, { to, d: 8, heads: 1, count: 3 }))
      }),
      { numRuns: 12 },
    )
  })

  it('counts what it refuses on top of what was counted, exactly', async () => {
    const bits = patterns('f32', gaussians(random(3), 64 * 300)) as Uint32Array
    const bad = [0x7f800000, 0xff800000, 0x7fc00001]
    for (let i = 0; i < 1000; i++) bits[i * 17] = bad[i % 3]
    const got = await check(job(bits, { to: 'bf16', heads: 1, count: 300, refused: 5 }))
    expect(got.refused.u32[0]).toBe(1005)
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(
      backend(),
      'store',
      job(F32_EDGES, { to: 'f16', count: 33, at: 2 }),
      job(EVERY16.subarray(31000, 33000), { from: 'bf16', to: 'f32', d: 16, count: 5 }),
    ))
})

describe('store, the reference', () => {
  const kept = (x: number, to: Dtype) => {
    const given = job(patterns('f32', Float32Array.of(x)), { to, d: 8, heads: 1, count: 1 })
    store(given)
    return { bits: (to === 'f32' ? given.rows.buf.u32 : given.rows.buf.u16)[0], refused: given.refused.u32[0] }
  }

  it('rounds as the codec does', () => {
    for (const x of gaussians(random(5), 200, 1e3)) {
      expect(kept(x, 'f16')).toEqual({ bits: f32ToF16(x), refused: 0 })
      expect(kept(x, 'bf16')).toEqual({ bits: f32ToBf16(x), refused: 0 })
    }
    expect(f16ToF32(kept(65519, 'f16').bits)).toBe(65504)
    expect(kept(-0, 'bf16').bits).toBe(0x8000)
  })

  it('stores as 0 and counts what is not finite or would not be', () => {
    for (const to of DTYPES)
      for (const x of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])
        expect(kept(x, to)).toEqual({ bits: 0, refused: 8 })
    expect(kept(-65520, 'f16')).toEqual({ bits: 0, refused: 8 })
    expect(kept(3.4e38, 'bf16')).toEqual({ bits: 0, refused: 8 })
    expect(kept(3.4e38, 'f32').refused).toBe(0)
  })
})
