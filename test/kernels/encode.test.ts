import { describe, expect, it } from 'vitest'
import type { Bytes } from '../../sdk/bytes.ts'
import type { Rows } from '../../sdk/codec/codec.ts'
import { bf16ToF32, type Dtype } from '../../sdk/dtype.ts'
import { type EncodeJob, weightScale } from '../../sdk/kernels/encode.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectCodes } from '../support/edges.ts'
import { clusteredKeys, DTYPES, HEAD_DIMS, mixedKeys, rotationOf, rowsOf } from '../support/inputs.ts'
import { emptySummary, oracle, runOne, Stage } from '../support/jobs.ts'
import { codesOf, expectRepeatable, expectSame } from '../support/repeat.ts'

/** What keys are tried with; of 16 bits the narrowest dimension, a padded one, the widest. */
const CASES = DTYPES.flatMap((dtype) => (dtype === 'f32' ? HEAD_DIMS : [8, 80, 256]).map((d) => ({ d, dtype })))

/** Some of them: one to eight words a plane, padded and not. */
const SOME_CASES = [
  ...[8, 16, 64, 80, 192].map((d) => ({ d, dtype: 'f32' as const })),
  ...[80, 256].map((d) => ({ d, dtype: 'f16' as const })),
  ...[8, 80].map((d) => ({ d, dtype: 'bf16' as const })),
]

interface Options {
  heads?: number
  from?: number
  norms?: boolean
  counts?: boolean
}

/** Encodes all rows from `from` on into an empty summary. */
function jobOf(keys: Rows<Bytes>, count: number, { heads = 1, from = 0, norms, counts }: Options = {}) {
  const rotation = rotationOf(keys.d)
  const summary = emptySummary(heads, count, rotation.D, { norms, counts })
  return { keys, heads, from, count, rotation, summary, at: 0 } satisfies EncodeJob<Bytes>
}

/** Keys of which the last of each head are hard, after three rows that are not encoded. */
function hardJob(d: number, count: number, dtype: Dtype, options: Options = {}) {
  const heads = options.heads ?? 1
  return jobOf(rowsOf(mixedKeys(d + count, heads, count + 3, d), heads, d, dtype, 2), count, { ...options, from: 3 })
}

/** The same keys in several calls on one device, results read once at the end. */
async function inChunks(stage: Stage, whole: EncodeJob<Bytes>, cuts: readonly number[]): Promise<EncodeJob<Bytes>> {
  const edges = [0, ...cuts, whole.count]
  for (let i = 1; i < edges.length; i++) {
    const [at, count] = [edges[i - 1], edges[i] - edges[i - 1]]
    await stage.run('encode', [{ ...whole, from: whole.from + at, at, count }])
  }
  return stage.result('encode', whole)
}

onEveryBackend('encode', (backend, _, { fewer }) => {
  const cases = fewer('dimensions and types', CASES, SOME_CASES)
  it.each(cases)('is right up to the rounding edges at d = $d, hard $dtype keys included', async ({ d, dtype }) => {
    for (const count of [1, 15, 17, 50])
      expectCodes(await runOne(backend(), 'encode', hardJob(d, count, dtype, { heads: 2, counts: true })))
  })

  it.each(DTYPES)('keeps norms of hard %s keys', async (dtype) => {
    for (const count of [1, 15, 50])
      expectCodes(await runOne(backend(), 'encode', hardJob(80, count, dtype, { norms: true, counts: true })))
  })

  it('does without counts and norms', async () => {
    expectCodes(await runOne(backend(), 'encode', hardJob(128, 31, 'f32')))
  })

  it('encodes many keys', async () => {
    const job = hardJob(80, 777, 'bf16', { heads: 2, norms: true, counts: true })
    expectCodes(await runOne(backend(), 'encode', job))
  })

  it.each([
    { d: 64, count: 60, cuts: [1, 3, 17, 33] },
    { d: 80, count: 35, cuts: [3, 16, 34] },
    { d: 192, count: 20, cuts: [17, 18, 19] },
  ])('in chunks cut at $cuts equals at once, d = $d', async ({ d, count, cuts }) => {
    const whole = hardJob(d, count, 'f32', { heads: 2, norms: true, counts: true })
    const stage = new Stage(backend())
    const chunked = await inChunks(stage, whole, cuts)
    stage.free()
    const once = await runOne(backend(), 'encode', whole)
    expectSame(codesOf(chunked.summary, count), codesOf(once.summary, count), 'code')
    expectSame(chunked.summary.counts!.u32, once.summary.counts!.u32, 'count')
    expectSame(chunked.summary.normExp!.i32, once.summary.normExp!.i32, 'norm exponent')
  })

  it('leaves the keys already there as they are', async () => {
    const first = hardJob(80, 33, 'bf16', { counts: true })
    const stage = new Stage(backend())
    await stage.run('encode', [{ ...first, count: 17 }])
    const before = await stage.result('encode', first)
    await stage.run('encode', [{ ...first, from: first.from + 17, at: 17, count: 16 }])
    const after = await stage.result('encode', first)
    stage.free()
    expectSame(codesOf(after.summary, 17), codesOf(before.summary, 17), 'earlier code')
  })

  it('keeps norm bytes whatever the order in which longer keys arrive', async () => {
    const lengths = [1, 300, 0.004, 0, 7e4, 2, 1e-20, 5e4, 90, 3e5]
    const d = 64
    const keys = clusteredKeys(5, 1, lengths.length, d)
    const arrange = (order: readonly number[]) =>
      Float32Array.from(order.flatMap((i) => [...keys.subarray(i * d, (i + 1) * d)].map((v) => v * lengths[i])))
    const ascending = lengths.map((_, i) => i)
    const seen: number[][] = []
    for (const order of [ascending, ascending.toReversed(), [4, 3, 9, 0, 1, 2, 8, 7, 6, 5]])
      for (const cuts of [[], [1, 2, 3, 4, 5, 6, 7, 8, 9], [3, 7]]) {
        const job = jobOf(rowsOf(arrange(order), 1, d, 'f32'), lengths.length, { norms: true, counts: true })
        const stage = new Stage(backend())
        const { summary } = await inChunks(stage, job, cuts)
        stage.free()
        expectCodes({ ...job, summary })
        seen.push([...ascending.map((i) => summary.norms!.u8[order.indexOf(i)]), summary.normExp!.i32[0]])
      }
    for (const bytes of seen) expect(bytes).toEqual(seen[0])
    expect(Math.max(...seen[0].slice(0, -1))).toBeGreaterThanOrEqual(128)
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(
      backend(),
      'encode',
      hardJob(80, 40, 'f16', { heads: 2, norms: true, counts: true }),
      hardJob(64, 17, 'f32', { counts: true }),
    ))
})

describe('encode, the reference', () => {
  it('gives a zero key sign bits 1 and weights 0', () => {
    const { summary } = oracle('encode', jobOf(rowsOf(new Float32Array(128), 1, 128, 'f32'), 1, { norms: true }))
    expect([...summary.signs.u8.subarray(0, 16)]).toEqual(new Array(16).fill(255))
    expect([...summary.magnitudes.u8.subarray(0, 48)]).toEqual(new Array(48).fill(0))
    expect([...summary.weights.u8.subarray(0, 16)]).toEqual(new Array(16).fill(0))
    expect([summary.scales.u16[0], summary.norms!.u8[0]]).toEqual([0, 0])
  })

  it('takes the least bf16 that reaches the scale, over the whole range of f32', () => {
    for (const e of [-126, -60, 0, 1, 64, 127])
      for (const least of [0.0040001, 0.00390625, 1 / 255, 0.011, 0.99999999]) {
        const { bits, unit } = weightScale(least, e)
        expect(unit * 2 ** e).toBe(bf16ToF32(bits))
        expect(unit).toBeGreaterThanOrEqual(least)
        expect(bits === 0x80 || bf16ToF32(bits - 1) < least * 2 ** e).toBe(true)
      }
    expect(weightScale(0, 5)).toEqual({ bits: 0, unit: 0 })
  })
})
