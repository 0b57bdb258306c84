import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { describe, expect, it } from 'vitest'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import { Engine } from '../../sdk/engine.ts'
import { feed, options, queriesAt, sequence } from '../support/sessions.ts'

const MEGABYTE = 2 ** 20

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

/** Bytes in use once everything that nobody holds is gone. */
async function bytesInUse(): Promise<number> {
  await new Promise((resolve) => setTimeout(resolve))
  collect()
  const { heapUsed, arrayBuffers } = process.memoryUsage()
  return heapUsed + arrayBuffers
}

describe('the heap', () => {
  it.each([
    ['never', 10_000],
    ['always', 10_000],
  ] as const)('stays flat over decode steps, offload %s', async (offload, steps) => {
    const shape = { queryHeads: 2, kvHeads: 1, headDim: 8 }
    const seq = sequence(221, 300, shape)
    const backend = createReferenceBackend()
    const session = await new Engine(backend).createSession(
      options({ ...shape, capacity: 300 }, { k: 4, hotRows: 8, offload }),
    )
    await feed(session, seq, 0, 100)
    const allocated = backend.allocated()
    const marks: number[] = []
    for (let step = 0; step < steps; step++) {
      if (session.length() === 300) await session.truncate(100)
      await feed(session, seq, session.length(), session.length() + 1)
      const { output } = await session.attend(0, { queries: queriesAt(seq, step % 300) })
      if (!Number.isFinite(output[0])) expect.fail(`step ${step}`)
      if (step >= 2000 && step % 500 === 499) marks.push(await bytesInUse())
    }
    const [early, late] = [marks.slice(0, 4), marks.slice(-4)].map((some) => Math.min(...some))
    expect(late - early).toBeLessThan(MEGABYTE / 2)
    expect(backend.allocated()).toBe(allocated)
    expect(session.state.snapshots.size).toBe(0)
  })
})
