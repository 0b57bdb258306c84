import { expect, it } from 'vitest'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { feed, options, sequence } from '../support/sessions.ts'

const update = 32
const local = 32

onEveryBackend('drift', (backend) => {
  it.each<[string, PolicyOptions]>([
    ['signs', { coarse: 'signs' }],
    ['collision', { coarse: 'collision' }],
    ['norm-weighted signs', { normWeighted: true }],
  ])('finds a needle among generated tokens two update intervals later: %s', async (_, policy) => {
    const shape = { headDim: 64, kvHeads: 2, queryHeads: 4 }
    const seq = sequence(21, 700, shape)
    const needle = 457
    const queries = new Float32Array(4 * 64)
    for (let h = 0; h < 2; h++)
      for (let j = 0; j < 64; j++) {
        const sign = (j * 7 + h) % 3 === 0 ? -1 : 1
        seq.keys[(h * 700 + needle) * 64 + j] = 2.5 * sign
        for (let g = 0; g < 2; g++) queries[(h * 2 + g) * 64 + j] = sign
      }
    const session = await new Engine(backend()).createSession(
      options({ ...shape, capacity: 700 }, { ...policy, update, local, k: 4 }),
    )
    await feed(session, seq, 0, 400)
    await feed(session, seq, 400, needle, 1)
    const best = async () => {
      const { indices, k } = await session.retrieve(0, { queries })
      return [indices[0], indices[k]]
    }
    await feed(session, seq, needle, needle + 1)
    expect(await best()).not.toContain(needle)
    await feed(session, seq, needle + 1, needle + 1 + local + 2 * update, 1)
    expect(await best()).toEqual([needle, needle])
    await feed(session, seq, session.length(), 700, 1)
    expect(await best()).toEqual([needle, needle])
  })
})
