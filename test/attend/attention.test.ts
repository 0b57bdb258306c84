import fc from 'fast-check'
import { expect, it } from 'vitest'
import { zonesOf } from '../../sdk/cache/zones.ts'
import type { SessionOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { exactAttention, upTo } from '../support/exact.ts'
import { expectNear, expectSame } from '../support/repeat.ts'
import { feed, NEAR, options, queriesAt, type Sequence, sequence } from '../support/sessions.ts'

const largest = (values: Float32Array) => values.reduce((max, v) => Math.max(max, Math.abs(v)), 0)

onEveryBackend('attention', (backend, name) => {
  const seq = sequence(41, 400)

  async function open(n: number, given: SessionOptions, of: Sequence = seq) {
    const session = await new Engine(backend()).createSession(given)
    await feed(session, of, 0, n)
    return session
  }

  function expectAttention(
    got: { output: Float32Array; lse: Float32Array },
    want: { output: number[]; lse: number[] },
    of: Sequence = seq,
  ) {
    expectNear(got.output, want.output, NEAR[name] * largest(of.values), 'output')
    expectNear(
      got.lse,
      want.lse,
      (i) => Math.max(name === 'reference' ? 1e-6 : 1e-4, Math.abs(want.lse[i]) * 2 ** -22),
      'lse',
    )
  }

  it('is exact below denseBelow and where the sequence is short', async () => {
    for (const n of [1, 2, 35, 400]) {
      const session = await open(n, options({}, { denseBelow: 1000 }))
      const queries = queriesAt(seq, n - 1)
      expectAttention(await session.attend(0, { queries }), exactAttention(seq, queries, upTo(n)))
    }
    const short = await open(35, options())
    const queries = queriesAt(seq, 34)
    expectAttention(await short.attend(0, { queries }), exactAttention(seq, queries, upTo(35)))
  })

  it('with k at or above the zone equals dense attention', async () => {
    const policies = fc.record({
      sink: fc.integer({ min: 0, max: 20 }),
      local: fc.integer({ min: 0, max: 30 }),
      update: fc.integer({ min: 1, max: 40 }),
      coarse: fc.constantFrom('signs' as const, 'collision' as const),
    })
    await fc.assert(
      fc.asyncProperty(policies, fc.integer({ min: 1, max: 200 }), fc.nat(3), async (policy, n, more) => {
        const k = Math.max(1, zonesOf(n, policy).retrieval + more)
        const all = await open(n, options({}, { ...policy, k }))
        const dense = await open(n, options({}, { ...policy, denseBelow: 1000 }))
        const queries = queriesAt(seq, n)
        const [a, b] = [await all.attend(0, { queries }), await dense.attend(0, { queries })]
        expectNear(a.output, b.output, 1e-6, 'output')
        expectNear(a.lse, b.lse, 1e-6, 'lse')
        await Promise.all([all.dispose(), dense.dispose()])
      }),
      { numRuns: 12 },
    )
  })

  it('is exact where the buffer is long and the zone shorter than k', async () => {
    for (const [update, n, zone] of [
      [60, 60, 0],
      [20, 43, 4],
      [24, 51, 8],
    ]) {
      const session = await open(n, options({}, { update }))
      expect(session.stats().layers[0].zones.retrieval).toBe(zone)
      const queries = queriesAt(seq, n)
      expectAttention(await session.attend(0, { queries }), exactAttention(seq, queries, upTo(n)))
    }
  })

  it.each(['mean', 'max'] as const)('reads sink, retrieved, local and buffer of each KV head: %s', async (group) => {
    const wide = sequence(42, 400, { kvHeads: 2, queryHeads: 6, headDim: 16 })
    for (const n of [200, 333, 400]) {
      const session = await open(n, options({ queryHeads: 6 }, { group }), wide)
      const { sink, retrieval } = session.stats().layers[0].zones
      for (const t of [1, 399]) {
        const queries = queriesAt(wide, t)
        const { indices } = await session.retrieve(0, { queries, k: 8 })
        const positions = [0, 1].map((h) => [
          ...upTo(sink),
          ...indices.subarray(h * 8, h * 8 + 8),
          ...upTo(n).slice(sink + retrieval),
        ])
        expect(positions[0]).not.toEqual(positions[1])
        expectAttention(await session.attend(0, { queries }), exactAttention(wide, queries, positions), wide)
      }
    }
  })

  it('maps query heads to KV heads in order, one to one and all to one too', async () => {
    for (const [kvHeads, queryHeads] of [
      [1, 1],
      [1, 5],
      [3, 3],
      [2, 8],
    ]) {
      const shape = { kvHeads, queryHeads, headDim: 8 }
      const of = sequence(kvHeads + queryHeads, 60, shape)
      const session = await open(60, options(shape, { denseBelow: 100 }), of)
      const queries = queriesAt(of, 59)
      expectAttention(await session.attend(0, { queries }), exactAttention(of, queries, upTo(60)), of)
    }
  })

  it('scales products by 1/√d, or as told', async () => {
    const queries = queriesAt(seq, 99)
    for (const scale of [undefined, 0.05, 1]) {
      const session = await open(100, options({ scale }, { denseBelow: 1000 }))
      const want = exactAttention(seq, queries, upTo(100), scale ?? 1 / 4)
      const { lse } = await session.attend(0, { queries })
      expectNear(lse, want.lse, (i) => Math.max(1e-4, Math.abs(want.lse[i]) * 1e-6), 'lse')
    }
  })

  it('of an empty layer is 0 and −Inf, before and after the session holds anything', async () => {
    const session = await new Engine(backend()).createSession(options({ layers: 2 }))
    const expectEmpty = async () => {
      const { output, lse } = await session.attend(0, { queries: queriesAt(seq, 0) })
      expectSame(output, new Float32Array(64), 'output')
      expectSame(lse, new Float32Array(4).fill(Number.NEGATIVE_INFINITY), 'lse')
    }
    await expectEmpty()
    await feed(session, seq, 0, 100, 100, 1)
    await expectEmpty()
    await feed(session, seq, 0, 100)
    await session.truncate(0)
    await expectEmpty()
  })

  it('gives the same bytes twice', async () => {
    const [one, two] = [await open(390, options()), await open(390, options())]
    const queries = queriesAt(seq, 390)
    const first = await one.attend(0, { queries })
    for (const session of [one, two]) {
      const again = await session.attend(0, { queries })
      expectSame(again.output, first.output, 'output')
      expectSame(again.lse, first.lse, 'lse')
    }
  })
})
