import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import { loadRow, type Rows } from '../../sdk/codec/codec.ts'
import type { Dtype } from '../../sdk/dtype.ts'
import { estimate, type RerankJob } from '../../sdk/kernels/rerank.ts'
import { onEveryBackend } from '../support/backends.ts'
import {
  DTYPES,
  gaussians,
  HEAD_DIMS,
  mixedKeys,
  pick,
  poisoned,
  random,
  rotationOf,
  rowsOf,
} from '../support/inputs.ts'
import { emptySummary, oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable } from '../support/repeat.ts'

interface Case {
  d: number
  keys: number
  /** Candidates drawn from the keys; every key when absent. */
  candidates?: number
  heads?: number
  group?: number
  choosers?: number
  dtype?: Dtype
}

/** A zone, its queries, and the two jobs that estimate and that compute the products; row `base` is key 0. */
function zone({ d, keys: count, candidates, heads = 2, group = 4, choosers = 1, dtype = 'f32' }: Case) {
  const base = 5
  const next = random(d + count)
  const drawn = mixedKeys(d + count, heads, base + count, d)
  // Products with keys beyond this leave f32.
  const keys = rowsOf(
    drawn.map((v) => Math.max(-1e33, Math.min(1e33, v))),
    heads,
    d,
    dtype,
    3,
  )
  const rotation = rotationOf(d)
  const summary = emptySummary(heads, count, rotation.D)
  const { summary: codes } = oracle('encode', { keys, heads, from: base, count, rotation, summary, at: 0 })
  const { chosen, y, scales } = oracle('query', {
    queries: Bytes.of(gaussians(next, heads * group * d)),
    heads,
    group,
    choosers,
    rotation,
    chosen: new Bytes(heads * choosers * d * 4),
    y: new Bytes(heads * choosers * rotation.D * 4),
    scales: new Bytes(heads * 4),
    t: new Bytes(heads * choosers * rotation.D),
  })
  const picked = () => Array.from({ length: heads }, () => [...pick(next, count, candidates ?? count)]).flat()
  const ids = candidates === undefined ? null : Bytes.of(Uint32Array.from(picked()))
  const C = candidates ?? count
  const rest = { heads, choosers, ids, count: C }
  const scale = choosers === 1 ? 1 / group : 1
  return {
    keys,
    base,
    chosen,
    scale,
    codes: { ...rest, source: { codes, y, scales }, estimates: poisoned(heads * C * 4) } as RerankJob<Bytes>,
    rows: {
      ...rest,
      source: { rows: keys, base, chosen, scale },
      estimates: poisoned(heads * C * 4),
    } as RerankJob<Bytes>,
  }
}

/** ‖q‖·‖k‖ of each estimate of a job, q the longest chooser; never below the least normal f32. */
function lengths(z: ReturnType<typeof zone>): Float64Array {
  const { heads, choosers, ids, count } = z.codes
  const { d } = z.keys
  const row = new Float32Array(d)
  return Float64Array.from({ length: heads * count }, (_, i) => {
    const h = Math.floor(i / count)
    loadRow(z.keys, h, z.base + (ids ? ids.u32[i] : i % count), row)
    const chosen = Array.from({ length: choosers }, (_, c) =>
      Math.hypot(...z.chosen.f32.subarray((h * choosers + c) * d, (h * choosers + c + 1) * d)),
    )
    return Math.max(2 ** -100, Math.max(...chosen) * z.scale * Math.hypot(...row))
  })
}

onEveryBackend('rerank', (backend) => {
  async function check(z: ReturnType<typeof zone>) {
    const size = lengths(z)
    for (const job of [z.codes, z.rows]) {
      const { estimates } = await runOne(backend(), 'rerank', job)
      const what = job === z.codes ? 'estimate' : 'product'
      expectNear(estimates.f32, oracle('rerank', job).estimates.f32, (i) => 1e-5 * size[i], what)
    }
  }

  it.each(HEAD_DIMS)('estimates as the reference at d = %i', async (d) => {
    await check(zone({ d, keys: 50 }))
    for (const candidates of [1, 15, 17]) await check(zone({ d, keys: 50, candidates }))
  })

  it.each(DTYPES)('takes exact products with %s rows', async (dtype) => {
    await check(zone({ d: 80, keys: 40, candidates: 23, dtype }))
    await check(zone({ d: 8, keys: 21, dtype }))
  })

  it('takes the best of the choosers', async () => {
    for (const group of [2, 4]) await check(zone({ d: 64, keys: 60, candidates: 33, group, choosers: group }))
  })

  it('estimates a long zone', async () => {
    await check(zone({ d: 128, keys: 2000, candidates: 200, heads: 1 }))
  })

  it('repeats to the bit, in a batch and alone', async () => {
    const [a, b] = [zone({ d: 128, keys: 99, candidates: 50 }), zone({ d: 64, keys: 17, choosers: 2, group: 2 })]
    await expectRepeatable(backend(), 'rerank', a.codes, b.codes)
    await expectRepeatable(backend(), 'rerank', a.rows, b.codes)
  })
})

describe('rerank, the reference', () => {
  it('estimates within the error of a 3-bit code', () => {
    const z = zone({ d: 128, keys: 300, heads: 1 })
    const [est, exact] = [oracle('rerank', z.codes).estimates.f32, oracle('rerank', z.rows).estimates.f32]
    const size = lengths(z)
    const errors = [...est].map((v, i) => (v - exact[i]) / size[i]).slice(0, 280)
    expect(Math.sqrt(errors.reduce((sum, v) => sum + v * v, 0) / errors.length)).toBeLessThan(0.03)
    expect(Math.abs(errors.reduce((sum, v) => sum + v, 0) / errors.length)).toBeLessThan(0.01)
  })

  it('estimates ‖k‖² for q = k, up to the 8 bits of a weight', () => {
    const keys = rowsOf(mixedKeys(9, 1, 60, 128), 1, 128, 'f32')
    const rotation = rotationOf(128)
    const summary = emptySummary(1, 60, 128)
    const { summary: codes } = oracle('encode', { keys, heads: 1, from: 0, count: 60, rotation, summary, at: 0 })
    const rotated = oracle('rotate', {
      x: keys.buf,
      rows: 44,
      rotation,
      y: new Bytes(60 * 512),
      exponents: new Bytes(240),
    })
    for (let n = 0; n < 44; n++) {
      const k = keys.buf.f32.subarray(n * 128, (n + 1) * 128)
      const square = Math.hypot(...k) ** 2
      const unit = 2 ** rotated.exponents.i32[n] / Math.sqrt(128)
      expect((estimate(codes, 0, n, rotated.y.f32, n * 128) * unit) / square).toBeCloseTo(1, 2)
      const weightless = estimate(codes, 0, n, rotated.y.f32, n * 128, new Array(16).fill(0))
      expect(weightless).toBe(0)
    }
  })

  it('reads rows from `base` on', () => {
    const keys: Rows<Bytes> = rowsOf(
      Float32Array.from({ length: 40 }, (_, i) => Math.floor(i / 8)),
      1,
      8,
      'f32',
    )
    const chosen = Bytes.of(new Float32Array(8).fill(1))
    const source = { rows: keys, base: 2, chosen, scale: 0.5 }
    const { estimates } = oracle('rerank', {
      source,
      heads: 1,
      choosers: 1,
      ids: null,
      count: 3,
      estimates: new Bytes(12),
    })
    expect([...estimates.f32]).toEqual([8, 12, 16])
  })
})
