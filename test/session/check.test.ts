import { expect, it } from 'vitest'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSameState, feed, options, sequence } from '../support/sessions.ts'

onEveryBackend('check', (backend) => {
  const seq = sequence(201, 300)
  const open = async (n: number, policy: PolicyOptions = {}) => {
    const session = await new Engine(backend()).createSession(options({ layers: 2 }, policy))
    await feed(session, seq, 0, n)
    await feed(session, seq, 0, 70, 9, 1)
    return session
  }

  it.each<PolicyOptions>([{}, { coarse: 'collision' }, { normWeighted: true }])(
    'is ok in a healthy session: %o',
    async (policy) => {
      const session = await open(300, policy)
      const allocated = backend().allocated()
      const { ok, checked, problems } = await session.check()
      expect([ok, problems]).toEqual([true, []])
      expect(checked).toBeGreaterThanOrEqual(2 * 3 * 16)
      expect(backend().allocated()).toBe(allocated)
      await expectSameState(session, await open(300, policy))
    },
  )

  it('is ok with nothing to compare', async () => {
    const empty = await new Engine(backend()).createSession(options())
    expect(await empty.check()).toEqual({ ok: true, checked: 0, refused: 0, problems: [] })
    await feed(empty, seq, 0, 20)
    expect(await empty.check()).toEqual({ ok: true, checked: 0, refused: 0, problems: [] })
  })

  it('finds a spoiled sign plane and says where', async () => {
    const session = await open(300)
    const { signs } = session.state.cache!.layer(0).summary
    const [byte, ...rest] = await backend().read(signs, 0, 4)
    backend().write(signs, 0, Uint8Array.of(byte ^ 1, ...rest))
    const { ok, problems } = await session.check()
    expect(ok).toBe(false)
    expect(problems).toEqual([expect.stringMatching(/^layer 0, head 0, keys 0\.\.15: .*sign plane/)])
    backend().write(signs, 0, Uint8Array.of(byte, ...rest))
    expect((await session.check()).ok).toBe(true)
  })

  it('finds rows that changed under their codes', async () => {
    const session = await open(300)
    const { keys } = session.state.cache!.layer(0)
    const last = 4 + 280 - 1
    backend().write(keys.buf, (keys.cap + last) * 16 * 4, new Uint8Array(16 * 4))
    const { ok, problems } = await session.check()
    expect(ok).toBe(false)
    expect(problems.every((line) => line.startsWith('layer 0, head 1'))).toBe(true)
  })
})
