import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import { expectSameState, feed, options, queriesAt, refused, sequence } from '../support/sessions.ts'

onEveryBackend('fork with another policy', (backend) => {
  const seq = sequence(151, 300)
  const policy = { k: 8, sink: 4, local: 16, update: 8, denseBelow: 0 }

  async function open(given: object, n = 200) {
    const session = await new Engine(backend()).createSession(options({ layers: 2 }, given))
    await feed(session, seq, 0, n)
    if (n > 0) await feed(session, seq, 0, 33, 33, 1)
    return session
  }

  it.each([
    ['other zones', { sink: 9, local: 5, update: 3 }],
    ['collision', { coarse: 'collision' }],
    ['norms', { normWeighted: true }],
    ['no zone at all', { sink: 512 }],
  ] as const)('%s: as if the tokens had come to it', async (_, other) => {
    const parent = await open({})
    const fork = await parent.fork({ policy: { ...policy, ...other } })
    const want = await open(other)
    await expectSameState(fork, want)
    for (const session of [fork, want, parent]) await feed(session, seq, 200, 260)
    await expectSameState(fork, want)
    await expectSameState(parent, await open({}, 260))
    const queries = queriesAt(seq, 260)
    const [got, wanted] = await Promise.all([fork, want].map((session) => session.attend(0, { queries })))
    expectSame(new Uint8Array(got.output.buffer), new Uint8Array(wanted.output.buffer), 'output')
  })

  it('of an empty session, and with a policy that is refused', async () => {
    const parent = await open({}, 0)
    const fork = await parent.fork({ policy: { k: 3 } })
    expect([fork.config.policy.k, fork.length()]).toEqual([3, 0])
    expect(fork.config.shape).toEqual(parent.config.shape)
    await refused(parent.fork({ policy: { k: 0 } }), 'bad_k')
    await refused(parent.fork({ policy: { sink: -1 } }), 'bad_config')
  })
})
