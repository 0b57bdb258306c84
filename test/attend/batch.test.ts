import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { backendCases, onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import { expectSameState, feed, options, queriesAt, refused, rows, sequence } from '../support/sessions.ts'

onEveryBackend('batches', (backend) => {
  const seq = sequence(71, 400)
  const lengths = [0, 1, 37, 150, 399]

  async function sessions(engine: Engine) {
    return Promise.all(
      lengths.map(async (n, i) => {
        const policy = { coarse: i % 2 ? ('signs' as const) : ('collision' as const), auditEvery: i === 4 ? 1 : 0 }
        const session = await engine.createSession(options({ layers: 2 }, policy))
        await feed(session, seq, 0, n)
        if (n > 100) await feed(session, seq, 100, n, n, 1)
        return session
      }),
    )
  }

  it('attends as the single calls do, to the bit, one session twice and empty layers included', async () => {
    const engine = new Engine(backend())
    const open = await sessions(engine)
    const order = [4, 0, 3, 4, 2, 1, 4, 3]
    const items = order.map((s, i) => ({
      session: open[s],
      layer: i % 3 === 2 ? 1 : 0,
      queries: queriesAt(seq, 10 * i),
    }))
    const together = await engine.attendBatch(items)
    expect(together.length).toBe(items.length)
    for (const [i, { session, layer, queries }] of items.entries()) {
      const single = await session.attend(layer, { queries })
      expectSame(together[i].output, single.output, `output of item ${i}`)
      expectSame(together[i].lse, single.lse, `lse of item ${i}`)
    }
    expect(open[4].stats().recall.audits).toBeGreaterThan(0)
  })

  it('appends as the single calls do, ragged, several to one layer in order', async () => {
    const engine = new Engine(backend())
    const [together, single] = [await sessions(engine), await sessions(engine)]
    const plan: [number, number, number, number][] = [
      [4, 0, 0, 30],
      [0, 1, 3, 90],
      [4, 0, 30, 31],
      [2, 0, 0, 0],
      [4, 1, 5, 60],
      [1, 0, 200, 399],
    ]
    const items = (open: Session[]) =>
      plan.map(([s, layer, from, to]) => ({ session: open[s], layer, ...rows(seq, from, to) }))
    await engine.appendBatch(items(together))
    for (const { session, layer, ...input } of items(single)) await session.append(layer, input)
    for (const i of lengths.keys()) await expectSameState(together[i], single[i])
    expect(together.map((session) => session.stats().calls)).toEqual(single.map((session) => session.stats().calls))
  })

  it('of nothing is nothing', async () => {
    const engine = new Engine(backend())
    expect(await engine.attendBatch([])).toEqual([])
    await engine.appendBatch([])
  })

  it('refuses the whole batch for one bad item', async () => {
    const engine = new Engine(backend())
    const open = await sessions(engine)
    const good = { session: open[3], layer: 0, queries: queriesAt(seq, 0) }
    const bad = { session: open[4], layer: 0, queries: queriesAt(seq, 0).fill(Number.NaN, 5, 6) }
    await refused(engine.attendBatch([good, bad]), 'not_finite')
    await refused(engine.attendBatch([good, { ...good, layer: 2 }]), 'bad_layer')
    expect(open[3].stats().calls.attend).toBe(0)
    const keys = { session: open[3], layer: 0, ...rows(seq, 0, 5) }
    await refused(engine.appendBatch([keys, { ...keys, values: new Float32Array(3) }]), 'bad_shape')
    expect(open[3].length()).toBe(150)
    await open[2].dispose()
    await refused(engine.attendBatch([good, { ...good, session: open[2] }]), 'disposed')
    await refused(engine.appendBatch([keys, { ...keys, session: open[2] }]), 'disposed')
    expect(open[3].length()).toBe(150)
  })

  it('refuses the sessions of another engine, and what is no session', async () => {
    const other = new Engine(await backendCases[0].open())
    const engine = new Engine(backend())
    const foreign = await other.createSession(options())
    const own = await engine.createSession(options())
    const batch = (session: Session) => [
      { session: own, layer: 0, queries: queriesAt(seq, 0), ...rows(seq, 0, 3) },
      { session, layer: 0, queries: queriesAt(seq, 0), ...rows(seq, 0, 3) },
    ]
    for (const session of [foreign, undefined, {}] as Session[]) {
      await refused(engine.attendBatch(batch(session)), 'bad_config')
      await refused(engine.appendBatch(batch(session)), 'bad_config')
    }
    expect(own.length()).toBe(0)
    await other.dispose()
  })
})
