import fc from 'fast-check'
import { expect, it } from 'vitest'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSameState, feed, options, sequence, stateOf } from '../support/sessions.ts'

const POLICIES: Record<string, PolicyOptions> = {
  signs: {},
  collision: { coarse: 'collision' },
  'norm-weighted signs': { normWeighted: true },
  'no sink': { sink: 0 },
  'no local zone': { local: 0 },
  'update 1': { update: 1, coarse: 'collision' },
  'update above local': { update: 40, local: 8, normWeighted: true },
}

onEveryBackend('arrival', (backend, name) => {
  /** Tokens appended at once before the single ones: a GPU in software is slow. */
  const first = name === 'webgpu' ? 150 : 0
  const engine = () => new Engine(backend())
  const seq = sequence(7, 300)

  async function fed(policy: PolicyOptions, steps: Iterable<number>): Promise<Session> {
    const session = await engine().createSession(options({}, policy))
    let at = 0
    for (const step of steps) {
      await feed(session, seq, at, at + step)
      at += step
    }
    return session
  }

  it.each(Object.entries(POLICIES))('leaves the same bytes in chunks, singly and mixed: %s', async (_, policy) => {
    const whole = await fed(policy, [211])
    expect(whole.stats().layers[0].zones.retrieval).toBeGreaterThan(100)
    await expectSameState(await fed(policy, [first, ...new Array<number>(211 - first).fill(1)]), whole)
    await expectSameState(await fed(policy, [1, 0, 100, 1, 1, 57, 3, 48]), whole)
  })

  it('leaves the same bytes for any chunks', async () => {
    const chunks = fc.array(fc.integer({ min: 0, max: 60 }), { minLength: 1, maxLength: 8 })
    const policies = fc.constantFrom<PolicyOptions>({ coarse: 'collision' }, { normWeighted: true, local: 3 })
    await fc.assert(
      fc.asyncProperty(policies, chunks, async (policy, steps) => {
        const n = steps.reduce((a, b) => a + b, 0)
        fc.pre(n <= 300)
        const [mixed, whole] = [await fed(policy, steps), await fed(policy, [n])]
        await expectSameState(mixed, whole)
        await Promise.all([mixed.dispose(), whole.dispose()])
      }),
      { numRuns: 8 },
    )
  })

  it.each([
    ['slowly', (t: number) => 2 ** (t / 20)],
    ['by a leap', (t: number) => (t < 100 ? 1 : 2 ** 33)],
  ])('keeps norm bytes and their exponent as keys grow longer %s', async (_, growth) => {
    const growing = { ...seq, keys: seq.keys.map((v, i) => v * growth(Math.floor((i % (300 * 16)) / 16))) }
    const sessions = await Promise.all(
      [name === 'webgpu' ? 3 : 1, 13, 200].map(async (chunk) => {
        const session = await engine().createSession(options({}, { normWeighted: true }))
        await feed(session, growing, 0, 200, chunk)
        return session
      }),
    )
    const { 'normExp 0': exponents, 'norms 0.0': norms } = await stateOf(sessions[2])
    expect(new Int32Array(exponents.slice().buffer)[0]).toBeGreaterThan(0)
    expect(Math.max(...norms)).toBeGreaterThan(127)
    await expectSameState(sessions[0], sessions[2])
    await expectSameState(sessions[1], sessions[2])
  })

  it.each([0, 1])('takes a prompt of %i tokens and goes on', async (n) => {
    const session = await fed({}, [n])
    expect(session.length()).toBe(n)
    await feed(session, seq, n, 120, 1)
    await expectSameState(session, await fed({}, [120]))
  })

  it('keeps layers of different lengths apart', async () => {
    const session = await engine().createSession(options({ layers: 3 }))
    await feed(session, seq, 0, 150, 50, 2)
    await feed(session, seq, 0, 33, 11, 0)
    expect(session.stats().layers.map(({ length }) => length)).toEqual([33, 0, 150])
    expect([0, 1, 2].map((layer) => session.length(layer))).toEqual([33, 0, 150])
    const other = await engine().createSession(options({ layers: 3 }))
    await feed(other, seq, 0, 33, 33, 0)
    await feed(other, seq, 0, 150, 1, 2)
    await expectSameState(session, other)
  })
})
