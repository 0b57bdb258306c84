import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import { feed, options, queriesAt, refusedUnchanged, rows, sequence, snapshotOf } from '../support/sessions.ts'

onEveryBackend('capacity', (backend) => {
  const seq = sequence(3, 200)
  const open = (capacity = 100) => new Engine(backend()).createSession(options({ capacity, layers: 2 }))

  it('fills to the last token and refuses one more with nothing lost', async () => {
    const session = await open()
    await feed(session, seq, 0, 99)
    await feed(session, seq, 99, 100)
    expect(session.length()).toBe(100)
    const queries = queriesAt(seq, 0)
    const before = await session.attend(0, { queries })
    const error = await refusedUnchanged(session, () => session.append(0, rows(seq, 100, 101)), 'capacity')
    expect(error.got).toBe('1 tokens on top of 100')
    expect(error.want).toContain('100')
    expect(error.fix).toContain('larger capacity')
    const after = await session.attend(0, { queries })
    expectSame(after.output, before.output, 'output')
    expectSame(after.lse, before.lse, 'lse')
    await session.append(1, rows(seq, 0, 1))
    await session.truncate(90)
    await feed(session, seq, 90, 100)
    expectSame((await session.attend(0, { queries })).output, before.output, 'output')
  })

  it('refuses a chunk that would not fit, as append and as prefill', async () => {
    const session = await open()
    await feed(session, seq, 0, 50)
    await refusedUnchanged(session, () => session.append(0, rows(seq, 50, 101)), 'capacity')
    const prompt = { ...rows(seq, 50, 101), queries: new Float32Array(4 * 51 * 16) }
    await refusedUnchanged(session, () => session.prefill(0, prompt), 'capacity')
    expect(session.stats().calls).toEqual({ append: 1, prefill: 0, attend: 0, retrieve: 0 })
  })

  it('refuses a first append that is too long and stays as if new', async () => {
    const session = await open()
    const allocated = backend().allocated()
    await refusedUnchanged(session, () => session.append(0, rows(seq, 0, 101)), 'capacity')
    expect(backend().allocated()).toBe(allocated)
    expect(session.stats().store).toBeUndefined()
  })

  it('refuses a batch as a whole', async () => {
    const engine = new Engine(backend())
    const [a, b] = [await open(), await open()]
    await feed(a, seq, 0, 60)
    const before = await Promise.all([a, b].map(snapshotOf))
    const items = [
      { session: b, layer: 0, ...rows(seq, 0, 30) },
      { session: a, layer: 0, ...rows(seq, 60, 90) },
      { session: a, layer: 1, ...rows(seq, 0, 90) },
      { session: a, layer: 0, ...rows(seq, 90, 101) },
    ]
    await refusedUnchanged(a, () => engine.appendBatch(items), 'capacity')
    expectSame(await snapshotOf(b), before[1], 'the other session')
    await engine.appendBatch(items.slice(0, 3))
    expect([a.length(0), a.length(1), b.length(0)]).toEqual([90, 90, 30])
  })
})
