import fc from 'fast-check'
import { expect, it } from 'vitest'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import { expectSameState, feed, options, queriesAt, refusedUnchanged, sequence } from '../support/sessions.ts'

const POLICIES: [string, PolicyOptions][] = [
  ['signs', {}],
  ['collision', { coarse: 'collision' }],
  ['norm weights', { normWeighted: true }],
]

onEveryBackend('truncate', (backend, name) => {
  /** Tokens an append: a GPU in software is slow. */
  const step = name === 'webgpu' ? 6 : 1
  const plain = sequence(121, 520)
  const seq = { ...plain, keys: plain.keys.map((v, i) => v * 2 ** (Math.floor((i % (520 * 16)) / 16) / 40)) }
  const other = sequence(122, 520)

  async function open(n: number, policy: PolicyOptions = {}, of = seq) {
    const session = await new Engine(backend()).createSession(options({ capacity: 520 }, policy))
    await feed(session, of, 0, n)
    return session
  }

  it.each(POLICIES)('equals never having appended more, then and 300 tokens later: %s', async (_, policy) => {
    const [cut, never] = [await open(400, policy), await open(201, policy)]
    await cut.truncate(201)
    await expectSameState(cut, never)
    for (let t = 201; t < 501; t += step) {
      await Promise.all([feed(cut, other, t, t + step), feed(never, other, t, t + step)])
      if ((t - 201) % (20 * step) !== 0) continue
      const input = { queries: queriesAt(other, t) }
      const [a, b] = [await cut.attend(0, input), await never.attend(0, input)]
      expectSame(a.output, b.output, `output at ${t}`)
      expectSame(a.lse, b.lse, `lse at ${t}`)
      const [r, s] = [await cut.retrieve(0, input), await never.retrieve(0, input)]
      expectSame(r.indices, s.indices, `indices at ${t}`)
      expectSame(r.scores, s.scores, `scores at ${t}`)
    }
    await expectSameState(cut, never)
  })

  it('equals never having appended more, from any length to any', async () => {
    const lengths = fc.tuple(fc.integer({ min: 0, max: 200 }), fc.integer({ min: 0, max: 120 }))
    await fc.assert(
      fc.asyncProperty(lengths, fc.constantFrom(...POLICIES), async ([n, more], [, policy]) => {
        const [cut, never] = [await open(n + more, policy), await open(n, policy)]
        if (n === 0) await feed(never, seq, 0, 1).then(() => never.truncate(0))
        if (n + more === 0) await feed(cut, seq, 0, 1)
        await cut.truncate(n)
        await expectSameState(cut, never)
        await Promise.all([cut.dispose(), never.dispose()])
      }),
      { numRuns: 10 },
    )
  })

  it('cuts every layer that is longer and leaves the others', async () => {
    const session = await new Engine(backend()).createSession(options({ layers: 3 }, { coarse: 'collision' }))
    for (const [layer, n] of [150, 20, 90].entries()) await feed(session, seq, 0, n, n, layer)
    await session.truncate(60)
    expect([0, 1, 2].map((layer) => session.length(layer))).toEqual([60, 20, 60])
    const want = await new Engine(backend()).createSession(options({ layers: 3 }, { coarse: 'collision' }))
    for (const [layer, n] of [60, 20, 60].entries()) await feed(want, seq, 0, n, n, layer)
    await expectSameState(session, want)
  })

  it('forgets how large keys were, for what queries it then allows', async () => {
    const huge = { ...seq, keys: seq.keys.map((v, i) => (Math.floor((i % (520 * 16)) / 16) < 50 ? v : v * 1e33)) }
    const queries = queriesAt(seq, 0).map((v) => v * 1e6)
    const session = await open(60, {}, huge)
    const error = await refusedUnchanged(session, () => session.attend(0, { queries }), 'out_of_range')
    expect(error.where).toBe('session.attend')
    await session.truncate(50)
    const never = await open(50, {}, huge)
    const [a, b] = [await session.attend(0, { queries }), await never.attend(0, { queries })]
    expectSame(a.output, b.output, 'output')
    await session.retrieve(0, { queries })
    await feed(session, huge, 50, 60)
    await refusedUnchanged(session, () => session.attend(0, { queries }), 'out_of_range')
  })

  it('to the present length, and to 0, is fine; beyond it is refused', async () => {
    const session = await open(100)
    await session.truncate(100)
    await expectSameState(session, await open(100))
    for (const length of [101, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, undefined, null, '3', {}]) {
      const error = await refusedUnchanged(session, () => session.truncate(length as number), 'bad_length')
      expect(error.want).toBe('a whole number from 0 to 100')
    }
    await session.truncate(0)
    expect(session.length()).toBe(0)
    const fresh = await open(0)
    await fresh.truncate(0)
    await refusedUnchanged(fresh, () => fresh.truncate(1), 'bad_length')
  })
})
