import { expect, it } from 'vitest'
import { f32ToF16 } from '../../sdk/dtype.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSameState, feed, options, rows, sequence } from '../support/sessions.ts'

onEveryBackend('taking back an append', (backend) => {
  const seq = sequence(23, 200)
  const open = () => new Engine(backend()).createSession(options({ layers: 2 }))

  it('leaves the layer as it was, and goes on from there', async () => {
    for (const coarse of ['signs', 'collision'] as const) {
      const make = () => new Engine(backend()).createSession(options({}, { coarse }))
      const [session, other] = [await make(), await make()]
      for (const each of [session, other]) await feed(each, seq, 0, 90)
      const undo = session.undo(0)
      await feed(session, seq, 90, 130)
      await undo()
      expect(session.stats().calls.append).toBe(1)
      await expectSameState(session, other)
      for (const each of [session, other]) await feed(each, seq, 90, 130)
      await expectSameState(session, other)
    }
  })

  it('of the first append of all leaves the store open', async () => {
    const session = await open()
    const undo = session.undo(0)
    await feed(session, seq, 0, 20)
    expect(session.stats().store).toBe('f32')
    await undo()
    expect([session.length(), session.stats().store, session.memory().total]).toEqual([0, undefined, 0])
    const bits = (data: Float32Array) => ({ dtype: 'f16' as const, data: Uint16Array.from(data, f32ToF16) })
    const { keys, values } = rows(seq, 0, 5)
    await session.append(0, { keys: bits(keys), values: bits(values) })
    expect(session.stats().store).toBe('f16')
  })

  it('touches no other layer', async () => {
    const session = await open()
    await feed(session, seq, 0, 50, 50, 1)
    const undo = session.undo(0)
    await feed(session, seq, 0, 20)
    await undo()
    expect([session.length(0), session.length(1)]).toEqual([0, 50])
  })
})
