import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import type { Dtype } from '../../sdk/dtype.ts'
import { type AttendJob, attendCount } from '../../sdk/kernels/attend.ts'
import { ATTENTION, attention, largest, lseTolerance } from '../support/attention.ts'
import { onEveryBackend } from '../support/backends.ts'
import { DTYPES, gaussians, HEAD_DIMS, pick, poisoned, random, rowsOf } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectNear, expectRepeatable } from '../support/repeat.ts'

interface Case {
  d?: number
  heads?: number
  group?: number
  keyType?: Dtype
  valueType?: Dtype
  before?: readonly [number, number]
  after?: readonly [number, number]
  /** Retrieved ids, drawn from `base` to the end of the rows. */
  k?: number
  parts?: number
  /** Of the queries: larger ones make sharper softmax. */
  sharp?: number
}

const ROWS = 150
const BASE = 16

function job(options: Case): AttendJob<Bytes> {
  const { d = 64, heads = 2, group = 2, keyType = 'f32', valueType = keyType, k = 0, parts = 1, sharp = 1 } = options
  const next = random(d + k)
  const ids = () => Array.from({ length: heads }, () => [...pick(next, ROWS - BASE, k)].reverse()).flat()
  return {
    queries: Bytes.of(gaussians(next, heads * group * d, sharp)),
    keys: rowsOf(gaussians(next, heads * ROWS * d), heads, d, keyType, 3),
    values: rowsOf(gaussians(next, heads * ROWS * d, 2), heads, d, valueType, 1),
    heads,
    group,
    before: options.before ?? [0, 0],
    after: options.after ?? [0, 0],
    ids: k > 0 ? Bytes.of(Uint32Array.from(ids())) : null,
    k,
    base: BASE,
    scale: 1 / Math.sqrt(d),
    parts,
    partials: poisoned(parts * heads * group * (d + 2) * 4),
  }
}

/** Normalized output, maximum and log-sum-exp of every part and head. */
function states({ partials, parts, heads, group, keys: { d } }: AttendJob<Bytes>) {
  return Array.from({ length: parts * heads * group }, (_, i) => {
    const state = partials.f32.subarray(i * (d + 2), (i + 1) * (d + 2))
    const [max, sum] = [state[d], state[d + 1]]
    return { sums: state.slice(0, d), output: [...state.subarray(0, d)].map((v) => v / sum), max, sum }
  })
}

onEveryBackend('attend', (backend) => {
  async function check(given: AttendJob<Bytes>) {
    const got = await runOne(backend(), 'attend', given)
    const most = ATTENTION[given.values.dtype] * largest(given.values, given.heads, ROWS)
    const want = states(oracle('attend', given))
    states(got).forEach((state, i) => {
      const { max, sum, output } = want[i]
      const empty = max === Number.NEGATIVE_INFINITY
      if (empty) expect([state.max, state.sum, ...new Set(state.sums)], `part ${i}`).toEqual([max, 0, 0])
      else {
        expectNear([state.max], [max], lseTolerance(max), `max of part ${i}`)
        expectNear([state.max + Math.log(state.sum)], [max + Math.log(sum)], lseTolerance(max), `lse of part ${i}`)
        expectNear(state.output, output, most, `output of part ${i}`)
      }
    })
    return got
  }

  const everything = { before: [0, 7], after: [101, 150], k: 33 } as const

  it.each(HEAD_DIMS)('attends to sink, retrieved and local at d = %i', async (d) => {
    await check(job({ d, ...everything }))
    await check(job({ d, ...everything, parts: 3, heads: 3 }))
  })

  it.each(DTYPES)('reads %s keys and values, and mixed ones', async (keyType) => {
    await check(job({ d: 80, keyType, ...everything, parts: 2 }))
    await check(job({ d: 64, keyType, valueType: keyType === 'f32' ? 'f16' : 'f32', ...everything }))
  })

  it.each([1, 2, 3, 4, 5, 6, 7])('cuts into %i parts, more than there are positions too', async (parts) => {
    await check(job({ ...everything, parts }))
    for (const end of [1, 2, 5]) await check(job({ before: [0, end], parts, group: 4 }))
    await check(job({ k: 6, parts }))
  })

  it('takes any of the three lists alone, and none', async () => {
    await check(job({ before: [3, 20] }))
    await check(job({ after: [120, 149] }))
    await check(job({ k: 17 }))
    await check(job({ k: 1 }))
    await check(job({ before: [0, 4], after: [90, 91] }))
    await check(job({ parts: 1 }))
    await check(job({ parts: 3, before: [5, 5], after: [9, 9] }))
  })

  it('takes groups of 1, 2 and 4 and many heads', async () => {
    for (const group of [1, 2, 4]) await check(job({ group, heads: 3, d: 64, ...everything, parts: 2 }))
  })

  it('stays exact where the softmax is sharp', async () => {
    await check(job({ ...everything, sharp: 30, parts: 2 }))
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(
      backend(),
      'attend',
      job({ d: 80, keyType: 'bf16', ...everything, parts: 4 }),
      job({ d: 64, before: [0, 3], k: 5, group: 4 }),
    ))
})

describe('attend, the reference', () => {
  it('attends to sink, then retrieved, then local', () => {
    const given = job({ before: [2, 5], after: [140, 144], k: 9, group: 2 })
    expect(attendCount(given)).toBe(16)
    const got = states(oracle('attend', given))
    got.forEach(({ output, max, sum }, hq) => {
      const h = Math.floor(hq / 2)
      const ids = [...given.ids!.u32.subarray(h * 9, h * 9 + 9)].map((id) => BASE + id)
      const positions = [2, 3, 4, ...ids, 140, 141, 142, 143]
      const query = given.queries.f32.subarray(hq * 64, hq * 64 + 64)
      const want = attention(query, given.keys, given.values, h, positions, given.scale)
      expectNear(output, want.output, 1e-5, 'output')
      expectNear([max + Math.log(sum)], [want.lse], 1e-5, 'lse')
    })
  })
})
