import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import type { Dtype } from '../../sdk/dtype.ts'
import type { DenseJob } from '../../sdk/kernels/dense.ts'
import { ATTENTION, attention, largest, lseTolerance } from '../support/attention.ts'
import { onEveryBackend } from '../support/backends.ts'
import { DTYPES, gaussians, HEAD_DIMS, poisoned, random, rowsOf } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable, expectSame } from '../support/repeat.ts'

interface Case {
  d?: number
  tokens: number
  first?: number
  heads?: number
  group?: number
  keyType?: Dtype
  valueType?: Dtype
}

function job({ d = 80, tokens, first = 0, heads = 2, group = 2, ...types }: Case): DenseJob<Bytes> {
  const { keyType = 'f32', valueType = keyType } = types
  const next = random(d + tokens + first)
  const length = first + tokens
  return {
    queries: Bytes.of(gaussians(next, heads * group * tokens * d)),
    tokens,
    first,
    keys: rowsOf(gaussians(next, heads * length * d), heads, d, keyType, 3),
    values: rowsOf(gaussians(next, heads * length * d, 2), heads, d, valueType, 5),
    heads,
    group,
    scale: 1 / Math.sqrt(d),
    output: poisoned(heads * group * tokens * d * 4),
    lse: poisoned(heads * group * tokens * 4),
  }
}

onEveryBackend('dense', (backend, _, { fewer }) => {
  async function check(given: DenseJob<Bytes>) {
    const [got, want] = [await runOne(backend(), 'dense', given), oracle('dense', given)]
    const most = ATTENTION[given.values.dtype] * largest(given.values, given.heads, given.first + given.tokens)
    expectNear(got.lse.f32, want.lse.f32, (i) => lseTolerance(want.lse.f32[i]), 'lse')
    expectNear(got.output.f32, want.output.f32, most, 'output')
    return got
  }

  it.each(fewer('head dimensions', HEAD_DIMS, [8, 80, 192]))('attends causally at d = %i', async (d) => {
    for (const [tokens, first] of [
      [1, 0],
      [1, 37],
      [17, 0],
      [15, 20],
    ])
      await check(job({ d, tokens, first }))
  })

  it.each(DTYPES)('reads %s keys and values', async (keyType) => {
    await check(job({ tokens: 9, first: 12, keyType }))
  })

  const MIXED: readonly (readonly [Dtype, Dtype])[] = [
    ['f16', 'f32'],
    ['bf16', 'f32'],
    ['f32', 'bf16'],
  ]
  it.each(fewer('mixtures of types', MIXED, [['f16', 'f32']]))(
    'reads %s keys and %s values',
    async (keyType, valueType) => {
      await check(job({ tokens: 5, first: 3, keyType, valueType }))
    },
  )

  it('takes longer prompts and groups of 1, 2 and 4', async () => {
    await check(job({ d: 8, tokens: 130, heads: 1 }))
    await check(job({ tokens: 65, first: 64, heads: 1 }))
    for (const group of [1, 2, 4]) await check(job({ d: 8, tokens: 33, first: 1, group, heads: 3 }))
  })

  it.each(DTYPES)('does not overflow at scores of ±1e4, %s', async (dtype) => {
    const given = { ...job({ tokens: 20, first: 13, keyType: dtype }), scale: 1 }
    const spike = (rows: number, size: (n: number) => number) =>
      Float32Array.from({ length: rows * 80 }, (_, i) => (i % 80 === 7 ? size(Math.floor(i / 80)) : 0))
    const keys = rowsOf(
      spike(2 * 33, (n) => (n % 3) * 100 - 100),
      2,
      80,
      dtype,
    )
    for (const size of [100, -100]) {
      const { output, lse } = await check({ ...given, keys, queries: Bytes.of(spike(4 * 20, () => size)) })
      expect(output.f32.every(Number.isFinite) && lse.f32.every((v) => v > 9999)).toBe(true)
    }
  })

  it('gives the first token its own value', async () => {
    const { output, lse } = await check(job({ tokens: 3, heads: 1 }))
    const given = job({ tokens: 3, heads: 1 })
    expectNear(output.f32.subarray(0, 80), given.values.buf.f32.subarray(0, 80), 1e-6, 'output')
    expect(Number.isFinite(lse.f32[0])).toBe(true)
  })

  it('gives a prompt in two pieces what it gives at once', async () => {
    const whole = job({ tokens: 40, heads: 1, group: 2 })
    const once = await check(whole)
    const d = 80
    const tail = new Float32Array(2 * 17 * d)
    for (let hq = 0; hq < 2; hq++)
      tail.set(whole.queries.f32.subarray((hq * 40 + 23) * d, (hq + 1) * 40 * d), hq * 17 * d)
    const second = await runOne(backend(), 'dense', {
      ...whole,
      queries: Bytes.of(tail),
      tokens: 17,
      first: 23,
      output: poisoned(2 * 17 * d * 4),
      lse: poisoned(2 * 17 * 4),
    })
    for (let hq = 0; hq < 2; hq++) {
      const want = once.output.f32.subarray((hq * 40 + 23) * d, (hq + 1) * 40 * d)
      expectNear(second.output.f32.subarray(hq * 17 * d, (hq + 1) * 17 * d), want, 1e-5, 'output')
    }
  })

  it('sees nothing beyond the rows that there are, and the same where they are enough', async () => {
    for (const [tokens, first, length] of [
      [5, 36, 37],
      [70, 99, 100],
      [66, 10, 40],
      [3, 0, 1],
      [65, 63, 64],
    ]) {
      const given = job({ tokens, first, group: 2, keyType: 'bf16' })
      const { lse } = await check({ ...given, length })
      expect(lse.f32.every(Number.isFinite)).toBe(true)
    }
    const given = job({ tokens: 33, first: 20 })
    const [plain, told] = [given, { ...given, length: 53 }]
    const [a, b] = [await runOne(backend(), 'dense', plain), await runOne(backend(), 'dense', told)]
    expectSame(b.output.u32, a.output.u32, 'output')
    expectSame(b.lse.u32, a.lse.u32, 'lse')
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(
      backend(),
      'dense',
      job({ tokens: 33, keyType: 'bf16' }),
      job({ d: 8, tokens: 2, first: 9, group: 4 }),
    ))
})

describe('dense, the reference', () => {
  it('is softmax attention over positions 0..min(first + t, length − 1)', () => {
    const given = { ...job({ tokens: 6, first: 4 }), length: 7 }
    const { output, lse } = oracle('dense', given)
    for (let row = 0; row < 4 * 6; row++) {
      const [h, t] = [Math.floor(row / 12), row % 6]
      const positions = Array.from({ length: Math.min(7, 4 + t + 1) }, (_, n) => n)
      const query = given.queries.f32.subarray(row * 80, row * 80 + 80)
      const want = attention(query, given.keys, given.values, h, positions, given.scale)
      expectNear(output.f32.subarray(row * 80, row * 80 + 80), want.output, 1e-5, 'output')
      expectNear([lse.f32[row]], [want.lse], 1e-5, 'lse')
    }
  })

  it('is softmax attention over positions 0..first + t', () => {
    const given = job({ tokens: 6, first: 4 })
    const { output, lse } = oracle('dense', given)
    for (let row = 0; row < 4 * 6; row++) {
      const [h, t] = [Math.floor(row / 12), row % 6]
      const positions = Array.from({ length: 4 + t + 1 }, (_, n) => n)
      const query = given.queries.f32.subarray(row * 80, row * 80 + 80)
      const want = attention(query, given.keys, given.values, h, positions, given.scale)
      expectNear(output.f32.subarray(row * 80, row * 80 + 80), want.output, 1e-5, 'output')
      expectNear([lse.f32[row]], [want.lse], 1e-5, 'lse')
    }
  })
})
