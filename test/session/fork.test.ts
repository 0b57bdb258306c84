import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import { expectSameState, feed, options, queriesAt, sequence } from '../support/sessions.ts'

onEveryBackend('fork', (backend) => {
  const seq = sequence(131, 300)
  const other = sequence(132, 300)

  async function open(n: number, of = seq) {
    const policy = { normWeighted: true }
    const session = await new Engine(backend()).createSession(options({ layers: 2 }, policy))
    await feed(session, of, 0, n)
    if (n > 0) await feed(session, of, 0, 33, 33, 1)
    return session
  }

  it('holds what its parent holds, and neither sees the other go on', async () => {
    const parent = await open(150)
    const fork = await parent.fork()
    await expectSameState(fork, parent)
    for (let t = 150; t < 220; t++) {
      await feed(parent, seq, t, t + 1)
      await feed(fork, other, t, t + 1)
      if (t % 10 === 0) await Promise.all([parent, fork].map((s) => s.attend(0, { queries: queriesAt(seq, t) })))
    }
    await expectSameState(parent, await open(220))
    const want = await open(150)
    await feed(want, other, 150, 220)
    await expectSameState(fork, want)
    await parent.truncate(10)
    await feed(parent, other, 10, 100)
    await expectSameState(fork, want)
  })

  it('attends to the same bytes as its parent', async () => {
    const parent = await open(280)
    const fork = await parent.fork()
    const input = { queries: queriesAt(seq, 280) }
    const [a, b] = await Promise.all([parent.attend(0, input), fork.attend(0, input)])
    expectSame(b.output, a.output, 'output')
    const [r, s] = await Promise.all([parent.retrieve(0, input), fork.retrieve(0, input)])
    expectSame(s.indices, r.indices, 'indices')
  })

  it('lives on when its parent is disposed, and the parent when it is', async () => {
    const [parent, want] = [await open(100), await open(180)]
    const [one, two] = [await parent.fork(), await parent.fork()]
    await parent.dispose()
    await feed(one, seq, 100, 180)
    await one.dispose()
    await feed(two, seq, 100, 180)
    await expectSameState(two, want)
    const grandchild = await two.fork()
    await two.dispose()
    await expectSameState(grandchild, want)
  })

  it('of an empty session is an empty session, with calls and store of its own', async () => {
    const parent = await open(0)
    const fork = await parent.fork()
    await feed(parent, seq, 0, 60)
    expect(fork.stats()).toMatchObject({ store: undefined, calls: { append: 0 } })
    await feed(fork, other, 0, 90)
    expect([parent.length(), fork.length()]).toEqual([60, 90])
    expect(parent.stats().calls.append).toBe(1)
  })

  it('is taken in call order', async () => {
    const parent = await open(50)
    const [fork] = await Promise.all([parent.fork(), feed(parent, seq, 50, 80)])
    expect([fork.length(), parent.length()]).toEqual([50, 80])
  })
})
