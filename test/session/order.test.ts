import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import {
  bytesOf,
  expectSameState,
  feed,
  options,
  queriesAt,
  refused,
  rows,
  sequence,
  snapshotOf,
  tokensOf,
} from '../support/sessions.ts'

onEveryBackend('call order', (backend) => {
  const seq = sequence(141, 300)
  const engine = () => new Engine(backend())
  const open = async (n = 100) => {
    const session = await engine().createSession(options())
    await feed(session, seq, 0, n)
    return session
  }

  it('is that of the calls, awaited or not', async () => {
    const [fired, awaited] = [await open(), await open()]
    const at = (t: number) => ({ queries: queriesAt(seq, t) })
    const prompt = { ...rows(seq, 200, 260), queries: tokensOf(seq.queries, 300, 16, 200, 260) }
    const pending = [
      fired.append(0, rows(seq, 100, 150)),
      fired.attend(0, at(1)),
      fired.append(0, rows(seq, 150, 200)),
      fired.attend(0, at(1)),
      fired.prefill(0, prompt),
      fired.retrieve(0, at(2)),
      fired.truncate(120),
      engine().attendBatch([{ session: fired, layer: 0, ...at(1) }]),
      fired.attend(0, at(3)),
    ] as const
    const [, a, , b, p, r, , [c], e] = await Promise.all(pending)
    await feed(awaited, seq, 100, 150)
    expectSame(a.output, (await awaited.attend(0, at(1))).output, 'after 150')
    await feed(awaited, seq, 150, 200)
    expectSame(b.output, (await awaited.attend(0, at(1))).output, 'after 200')
    expectSame(p.output, (await awaited.prefill(0, prompt)).output, 'prefill')
    expectSame(r.indices, (await awaited.retrieve(0, at(2))).indices, 'indices')
    await awaited.truncate(120)
    expectSame(c.output, (await awaited.attend(0, at(1))).output, 'in a batch')
    expectSame(e.output, (await awaited.attend(0, at(3))).output, 'after truncation')
    expect(a.output).not.toEqual(b.output)
    await expectSameState(fired, awaited)
  })

  it('goes on after a refused call', async () => {
    const [session, want] = [await open(), await open(120)]
    const results = await Promise.allSettled([
      session.append(0, rows(seq, 100, 110)),
      session.append(0, { keys: new Float32Array(500 * 32), values: new Float32Array(500 * 32) }),
      session.truncate(1000),
      session.append(0, rows(seq, 110, 120)),
    ])
    expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'rejected', 'fulfilled'])
    await expectSameState(session, want)
  })

  it('puts a snapshot where it was called', async () => {
    const session = await open()
    const before = await snapshotOf(session)
    const [, file] = await Promise.all([
      session.append(0, rows(seq, 100, 130)),
      bytesOf(session.snapshot()),
      session.append(0, rows(seq, 130, 160)),
    ])
    expectSame(file, await snapshotOf(await open(130)), 'file')
    expect(before.length).toBeLessThan(file.length)
  })

  it('lets calls in flight end before a dispose, which may come twice', async () => {
    const allocated = backend().allocated()
    const [session, want] = [await open(), await open(150)]
    const expected = await want.attend(0, { queries: queriesAt(seq, 9) })
    await want.dispose()
    const append = session.append(0, rows(seq, 100, 150))
    const attend = session.attend(0, { queries: queriesAt(seq, 9) })
    const disposing = session.dispose()
    expect(session.disposed).toBe(true)
    await session.dispose()
    expect(backend().allocated()).toBe(allocated)
    await Promise.all([append, disposing])
    expectSame((await attend).output, expected.output, 'output')
    await session.dispose()
    expect(session.memory().total).toBe(0)
  })

  it('refuses every call after a dispose', async () => {
    const session = await open()
    await session.dispose()
    const queries = queriesAt(seq, 0)
    const calls: (() => unknown)[] = [
      () => session.append(0, rows(seq, 0, 1)),
      () => session.prefill(0, { ...rows(seq, 0, 1), queries }),
      () => session.attend(0, { queries }),
      () => session.retrieve(0, { queries }),
      () => session.truncate(0),
      () => session.fork(),
      () => session.check(),
      () => bytesOf(session.snapshot()),
      () => engine().attendBatch([{ session, layer: 0, queries }]),
      () => engine().appendBatch([{ session, layer: 0, ...rows(seq, 0, 1) }]),
    ]
    for (const call of calls) expect((await refused(call, 'disposed')).fix).toContain('Open a new session')
  })
})
