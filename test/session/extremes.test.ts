import { expect, it } from 'vitest'
import { f32ToBf16, f32ToF16 } from '../../sdk/dtype.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { exactAttention, exactBest, exactScores, upTo } from '../support/exact.ts'
import { expectNear } from '../support/repeat.ts'
import {
  expectSameState,
  feed,
  options,
  queriesAt,
  refusedUnchanged,
  rows,
  type Sequence,
  sequence,
} from '../support/sessions.ts'

onEveryBackend('extremes', (backend) => {
  const seq = sequence(181, 200)
  const N = 160
  const engine = () => new Engine(backend())
  const tokenOf = (i: number) => Math.floor((i % (200 * 16)) / 16)

  async function open(of: Sequence, policy = {}, store?: 'f32' | 'f16' | 'bf16') {
    const session = await engine().createSession(options({ store }, policy))
    await feed(session, of, 0, N)
    return session
  }

  const zero = { ...seq, keys: seq.keys.map((v, i) => (tokenOf(i) === 50 ? 0 : v)) }
  const equal = { ...seq, keys: seq.keys.map((_, i) => Math.fround(0.3 * ((i % 16) - 7))) }
  const zeros = { ...seq, keys: seq.keys.map(() => 0) }

  it.each([
    ['a zero key', zero],
    ['all-equal keys', equal],
    ['nothing but zero keys', zeros],
  ])('%s is valid: retrieval works and attention is exact over what it reads', async (_, of) => {
    for (const policy of [{}, { coarse: 'collision' as const }, { normWeighted: true }]) {
      const session = await open(of, policy)
      const queries = queriesAt(of, 33)
      const { indices, scores, k } = await session.retrieve(0, { queries })
      expect(k).toBe(8)
      expect(scores.every(Number.isFinite)).toBe(true)
      const { sink, retrieval } = session.stats().layers[0].zones
      const rest = upTo(N).slice(sink + retrieval)
      const positions = [0, 1].map((h) => [...upTo(sink), ...indices.subarray(h * 8, h * 8 + 8), ...rest])
      const want = exactAttention(of, queries, positions)
      const { output, lse } = await session.attend(0, { queries })
      expectNear(output, want.output, 5e-4, 'output')
      expectNear(lse, want.lse, 1e-3, 'lse')
      const restored = await engine().restore(session.snapshot())
      await expectSameState(restored, session)
    }
  })

  it('gives equal keys to the lower positions', async () => {
    for (const policy of [{}, { coarse: 'collision' as const }]) {
      const { indices } = await (await open(equal, policy)).retrieve(0, { queries: queriesAt(seq, 3) })
      expect([...indices]).toEqual([4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11])
    }
  })

  it.each([1e30, 1e-30])('keys of length %f are valid and found', async (length) => {
    for (const store of ['f32', 'bf16'] as const) {
      const of = { ...seq, keys: seq.keys.map((v) => v * length) }
      const session = await open(of, { beta: 1 }, store)
      const queries = queriesAt(seq, 12)
      const { indices, scores } = await session.retrieve(0, { queries, k: 100 })
      const best = exactBest(exactScores(seq, queries), 4, 140, 1)
      expect(new Set(indices.subarray(0, 100)).size).toBe(100)
      expect([...indices.subarray(0, 5)]).toContain(best[0][0])
      expect([...indices.subarray(100, 105)]).toContain(best[1][0])
      expect(scores[0] / length).toBeGreaterThan(0.01)
      const { output, lse } = await session.attend(0, { queries })
      expect(output.every(Number.isFinite)).toBe(true)
      expect(lse.every(Number.isFinite)).toBe(true)
      if (length < 1)
        expectNear(
          lse,
          lse.map(() => Math.log(4 + 8 + 16 + 4)),
          1e-4,
          'lse',
        )
      else expect(Math.max(...lse)).toBeGreaterThan(1e28)
    }
  })

  it('refuses what a store cannot hold, and holds what it can', async () => {
    const session = await engine().createSession(options({ store: 'f16' }))
    await feed(session, seq, 0, 40)
    const with5 = (value: number) => rows(seq, 40, 42).keys.fill(value, 5, 6)
    const values = rows(seq, 40, 42).values
    for (const value of [65520, -1e5, 3e38]) {
      const keys = with5(value)
      const error = await refusedUnchanged(session, () => session.append(0, { keys, values }), 'out_of_range')
      expect([error.where, error.got]).toEqual(['session.append(keys)', `|x| up to ${Math.abs(Math.fround(value))}`])
      expect(error.want).toContain('f16')
      expect(error.fix).toContain('bf16')
      const swapped = { keys: values, values: with5(Math.sign(value) * 1e5) }
      expect((await refusedUnchanged(session, () => session.append(0, swapped), 'out_of_range')).where).toContain(
        'values',
      )
    }
    await session.append(0, { keys: with5(65519), values })
    expect(session.length()).toBe(42)
    const halves = { dtype: 'bf16' as const, data: Uint16Array.from(with5(1e5), f32ToBf16) }
    await refusedUnchanged(session, () => session.append(0, { keys: halves, values }), 'out_of_range')
    const own = { dtype: 'f16' as const, data: Uint16Array.from(with5(65504), f32ToF16) }
    await session.append(0, { keys: own, values })
  })

  it('refuses queries whose products with the keys leave f32', async () => {
    const of = { ...seq, keys: seq.keys.map((v) => v * 1e30) }
    const session = await open(of)
    const queries = queriesAt(seq, 1).map((v) => v * 1e30)
    for (const call of [
      () => session.attend(0, { queries }),
      () => session.retrieve(0, { queries }),
      () => engine().attendBatch([{ session, layer: 0, queries }]),
      () =>
        session.prefill(0, {
          ...rows(seq, 0, 1),
          queries,
        }),
    ]) {
      const error = await refusedUnchanged(session, call, 'out_of_range')
      expect(error.got).toContain('|q|')
      expect(error.got).toContain('|k|')
    }
    for (const copy of [await session.fork(), await engine().restore(session.snapshot())])
      await refusedUnchanged(copy, () => copy.attend(0, { queries }), 'out_of_range')
    const small = await open(seq)
    const prompt = { ...rows(of, 0, 1), queries }
    await refusedUnchanged(small, () => small.prefill(0, prompt), 'out_of_range')
  })

  it('refuses values whose sums could leave f32', async () => {
    const session = await open(seq)
    const values = rows(seq, 0, 1).values.fill(1e38, 3, 4)
    const error = await refusedUnchanged(
      session,
      () => session.append(0, { ...rows(seq, 0, 1), values }),
      'out_of_range',
    )
    expect(error.got).toContain('|v|')
    await session.append(0, { ...rows(seq, 0, 1), values: rows(seq, 0, 1).values.fill(1e35, 3, 4) })
    const { output } = await session.attend(0, { queries: queriesAt(seq, 0) })
    expect(output.every(Number.isFinite)).toBe(true)
  })
})
