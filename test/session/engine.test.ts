import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { backendCases, onEveryBackend } from '../support/backends.ts'
import { feed, options, queriesAt, refused, rows, sequence, snapshotOf, streamOf } from '../support/sessions.ts'

onEveryBackend('engine', (_, name) => {
  const seq = sequence(211, 200)
  const openEngine = async () => {
    const backend = await backendCases.find((entry) => entry.name === name)!.open()
    return { backend, engine: new Engine(backend, [{ name: 'other', reason: 'why not' }]) }
  }

  it('says which backend it runs on and what was passed over', async () => {
    const { backend, engine } = await openEngine()
    expect(engine.info).toEqual({
      backend: name,
      description: backend.description,
      passedOver: [{ name: 'other', reason: 'why not' }],
    })
    await engine.dispose()
  })

  it('disposes of its sessions, their forks and what it restored', async () => {
    const { backend, engine } = await openEngine()
    const session = await engine.createSession(options())
    await feed(session, seq, 0, 100)
    const fork = await session.fork()
    const grandchild = await fork.fork()
    const restored = await engine.restore(session.snapshot())
    const unused = await engine.createSession(options({ store: 'f32' }))
    await session.dispose()
    expect(backend.allocated()).toBeGreaterThan(0)
    await engine.dispose()
    expect(backend.allocated()).toBe(0)
    expect([session, fork, grandchild, restored, unused].map(({ disposed }) => disposed)).not.toContain(false)
    await engine.dispose()
    for (const one of [fork, grandchild, restored])
      await refused(one.attend(0, { queries: queriesAt(seq, 0) }), 'disposed')
  })

  it('lets the calls made before end, sessions on their way included', async () => {
    const { backend, engine } = await openEngine()
    const session = await engine.createSession(options())
    await feed(session, seq, 0, 100)
    const file = await snapshotOf(session)
    const pending = [session.fork(), engine.createSession(options({ store: 'f32' }))]
    const restore = refused(engine.restore(streamOf(file, 1000)), 'disposed')
    const attend = session.attend(0, { queries: queriesAt(seq, 0) })
    const disposing = engine.dispose()
    await Promise.all([engine.dispose(), disposing])
    expect(backend.allocated()).toBe(0)
    expect((await attend).output.length).toBe(64)
    const late = await Promise.all(pending)
    expect(late.map(({ disposed }) => disposed)).toEqual([true, true])
    expect(late.map((one) => one.memory().total)).toEqual([0, 0])
    await restore
  })

  it('does not wait for a restore whose source stalls', async () => {
    const { backend, engine } = await openEngine()
    const session = await engine.createSession(options())
    await feed(session, seq, 0, 100)
    const file = await snapshotOf(session)
    let cancelled = false
    const stalled = new ReadableStream<Uint8Array>({
      start: (controller) => controller.enqueue(file.slice(0, -100)),
      cancel: () => {
        cancelled = true
      },
    })
    const restore = refused(engine.restore(stalled), 'disposed')
    await new Promise((resolve) => setTimeout(resolve, 30))
    await engine.dispose()
    await restore
    expect([cancelled, backend.allocated()]).toEqual([true, 0])
  })

  it('disposes of a fork that was under way', async () => {
    const { backend, engine } = await openEngine()
    const session = await engine.createSession(options())
    await feed(session, seq, 0, 100)
    const fork = session.fork()
    await engine.dispose()
    expect((await fork).disposed).toBe(true)
    expect(backend.allocated()).toBe(0)
  })

  it('refuses every call after its dispose', async () => {
    const { engine } = await openEngine()
    const session = await engine.createSession(options())
    await engine.dispose()
    await refused(engine.createSession(options()), 'disposed')
    await refused(engine.attendBatch([]), 'disposed')
    await refused(engine.appendBatch([]), 'disposed')
    await refused(engine.restore(streamOf(new Uint8Array(8))), 'disposed')
    await refused(session.append(0, rows(seq, 0, 1)), 'disposed')
  })

  it('is disposed of with its scope, and so is a session', async () => {
    const { backend, engine } = await openEngine()
    const session = await engine.createSession(options({ store: 'f32' }))
    await session[Symbol.asyncDispose]()
    expect(backend.allocated()).toBe(0)
    await engine[Symbol.asyncDispose]()
    await refused(engine.createSession(options()), 'disposed')
  })
})
