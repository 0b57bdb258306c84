import { expect, it } from 'vitest'
import type { Progress } from '../../sdk/calls.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import {
  bytesOf,
  expectSameState,
  feed,
  joined,
  options,
  refused,
  sequence,
  snapshotOf,
  streamOf,
} from '../support/sessions.ts'

onEveryBackend('snapshot stream', (backend) => {
  const seq = sequence(91, 300)
  const growing = { ...seq, keys: seq.keys.map((v, i) => v * 2 ** (Math.floor((i % (300 * 16)) / 16) / 20)) }
  const engine = () => new Engine(backend())
  const open = async (n = 150) => {
    const session = await engine().createSession(options({ layers: 2 }, { normWeighted: true }))
    await feed(session, growing, 0, n)
    if (n > 0) await feed(session, growing, 0, 40, 40, 1)
    return session
  }

  it('gives the captured state while appends go on, however slowly it is read', async () => {
    const session = await open()
    const want = await snapshotOf(session)
    const stream = session.snapshot()
    const pending = feed(session, growing, 150, 170)
    const chunks: Uint8Array[] = []
    let t = 170
    for await (const chunk of stream as unknown as AsyncIterable<Uint8Array>) {
      chunks.push(chunk)
      await feed(session, growing, t, t + 8)
      t += 8
    }
    await pending
    expect(session.length()).toBeGreaterThan(200)
    expectSame(joined(chunks), want, 'file')
    await expectSameState(await engine().restore(streamOf(want)), await open())
  })

  it('does not mind a truncation above what it captured', async () => {
    const session = await open()
    const want = await snapshotOf(session)
    await feed(session, growing, 150, 250)
    await session.truncate(150)
    const stream = session.snapshot()
    const reader = stream.getReader()
    const first = await reader.read()
    await feed(session, growing, 150, 260)
    await session.truncate(151)
    reader.releaseLock()
    expectSame(joined([first.value ?? new Uint8Array(0), await bytesOf(stream)]), want, 'file')
  })

  it.each(['truncation', 'dispose'])('breaks with snapshot_stale on a %s below it', async (kind) => {
    const session = await open()
    const stream = session.snapshot()
    const reader = stream.getReader()
    await reader.read()
    if (kind === 'dispose') await session.dispose()
    else await session.truncate(149)
    reader.releaseLock()
    const error = await refused(bytesOf(stream), 'snapshot_stale')
    expect(error.got).toContain(kind)
    expect(session.state.snapshots.size).toBe(0)
  })

  it('is forgotten when cancelled, before its first byte too', async () => {
    const session = await open()
    await session.snapshot().cancel()
    const reader = session.snapshot().getReader()
    await reader.read()
    await reader.cancel()
    await session.retrieve(0, { queries: new Float32Array(64) })
    expect(session.state.snapshots.size).toBe(0)
    await session.truncate(3)
    expect((await snapshotOf(session)).length).toBeGreaterThan(0)
  })

  it('stops when aborted, before and in the middle', async () => {
    const session = await open()
    const before = await snapshotOf(session)
    const reason = new Error('enough')
    const early = await refused(bytesOf(session.snapshot({ signal: AbortSignal.abort(reason) })), 'aborted')
    expect([early.name, early.cause]).toEqual(['AbortError', reason])
    const stop = new AbortController()
    const stream = session.snapshot({ signal: stop.signal })
    const reader = stream.getReader()
    await reader.read()
    stop.abort(reason)
    reader.releaseLock()
    expect((await refused(bytesOf(stream), 'aborted')).cause).toBe(reason)
    expect(session.state.snapshots.size).toBe(0)
    expectSame(await snapshotOf(session), before, 'file')
  })

  it('reports bytes as they pass, up to all of them', async () => {
    const session = await open()
    const reports: Progress[] = []
    const file = await bytesOf(session.snapshot({ onProgress: (progress) => reports.push(progress) }))
    const restored: Progress[] = []
    await engine().restore(streamOf(file), { onProgress: (progress) => restored.push(progress) })
    for (const list of [reports, restored]) {
      expect(list.length).toBeGreaterThan(2)
      list.forEach(({ done, total, unit }, i) => {
        expect([total, unit]).toEqual([list[0].total, 'bytes'])
        expect(done).toBeGreaterThanOrEqual(i > 0 ? list[i - 1].done : 0)
      })
      expect(list.at(-1)?.done).toBe(list[0].total)
    }
  })
})
