import { expect, it } from 'vitest'
import { mergePartials } from '../../sdk/attend/merge-partials.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { exactAttention, upTo } from '../support/exact.ts'
import { expectNear, expectSame } from '../support/repeat.ts'
import { feed, NEAR, options, queriesAt, refusedUnchanged, sequence } from '../support/sessions.ts'

onEveryBackend('attention to a range', (backend, name) => {
  const N = 300
  const seq = sequence(91, N)
  const open = async (policy = {}) => {
    const session = await new Engine(backend()).createSession(options({ capacity: 400 }, policy))
    await feed(session, seq, 0, N)
    return session
  }

  it('is exact, wherever it lies', async () => {
    const session = await open()
    for (const [from, to] of [
      [0, N],
      [0, 1],
      [N - 1, N],
      [3, 250],
      [100, 164],
    ]) {
      const queries = queriesAt(seq, N - 1)
      const got = await session.attendRange(0, { queries, from, to })
      const want = exactAttention(
        seq,
        queries,
        upTo(to - from).map((i) => from + i),
      )
      expectNear(got.output, want.output, NEAR[name] * 5, `output of [${from}, ${to})`)
      expectNear(got.lse, want.lse, 1e-4, `lse of [${from}, ${to})`)
    }
    expect(session.stats().calls.attend).toBe(0)
  })

  it('merges into attention to everything, in parts of any size', async () => {
    const session = await open()
    const queries = queriesAt(seq, 17)
    const cuts = [0, 1, 1, 64, 200, 299, N]
    const partials = await Promise.all(
      cuts.slice(1).map((to, i) => session.attendRange(0, { queries, from: cuts[i], to })),
    )
    const whole = exactAttention(seq, queries, upTo(N))
    const got = mergePartials(partials)
    expectNear(got.output, whole.output, NEAR[name] * 5, 'output')
    expectNear(got.lse, whole.lse, 1e-4, 'lse')
  })

  it('is longer than any decode step may be, and leaves the next step as it was', async () => {
    const [session, other] = [await open({ k: 2, sink: 2, local: 4 }), await open({ k: 2, sink: 2, local: 4 })]
    const queries = queriesAt(seq, 250)
    await session.attendRange(0, { queries, from: 0, to: N })
    const [a, b] = [await session.attend(0, { queries }), await other.attend(0, { queries })]
    expectSame(a.output, b.output, 'output')
    expectSame(a.lse, b.lse, 'lse')
  })

  it('of nothing is 0 and −Inf', async () => {
    const fresh = await new Engine(backend()).createSession(options())
    for (const session of [fresh, await open()]) {
      const { output, lse } = await session.attendRange(0, { queries: queriesAt(seq, 0), from: 0, to: 0 })
      expectSame(output, new Array(64).fill(0), 'output')
      expectSame(lse, new Array(4).fill(Number.NEGATIVE_INFINITY), 'lse')
    }
  })

  it('refuses what the layer does not hold', async () => {
    const session = await open()
    const queries = queriesAt(seq, 0)
    for (const [from, to] of [
      [-1, 4],
      [4, 3],
      [0, N + 1],
      [0.5, 4],
      [0, Number.NaN],
    ])
      await refusedUnchanged(session, () => session.attendRange(0, { queries, from, to }), 'bad_length')
    await refusedUnchanged(session, () => session.attendRange(1, { queries, from: 0, to: 1 }), 'bad_layer')
    const short = queries.subarray(1)
    await refusedUnchanged(session, () => session.attendRange(0, { queries: short, from: 0, to: 1 }), 'bad_shape')
    const signal = AbortSignal.abort()
    await refusedUnchanged(session, () => session.attendRange(0, { queries, from: 0, to: 1 }, { signal }), 'aborted')
  })
})
