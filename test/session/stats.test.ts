import { expect, it } from 'vitest'
import type { SessionOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { feed, options, queriesAt, refused, rows, sequence } from '../support/sessions.ts'

const CONFIGS: [string, SessionOptions][] = [
  ['signs', options({ store: 'bf16', layers: 3 })],
  ['collision and max', options({ store: 'f32' }, { coarse: 'collision', group: 'max' })],
  ['norm weights at d 80', options({ store: 'f16', headDim: 80 }, { normWeighted: true })],
  ['no room for a zone', options({ store: 'f32', capacity: 20, headDim: 8 })],
  ['the defaults', { layers: 1, queryHeads: 2, kvHeads: 1, headDim: 64, capacity: 5000, store: 'bf16' }],
]

onEveryBackend('stats', (backend) => {
  const seq = sequence(191, 300)
  const engine = () => new Engine(backend())

  it('tell lengths, zones, calls and store', async () => {
    const session = await engine().createSession(options({ layers: 2 }))
    expect(session.stats()).toEqual({
      backend: backend().name,
      store: undefined,
      layers: [0, 1].map(() => ({ length: 0, zones: { sink: 0, retrieval: 0, local: 0, buffer: 0 } })),
      calls: { append: 0, prefill: 0, attend: 0, retrieve: 0 },
      recall: { mean: Number.NaN, last: Number.NaN, audits: 0 },
    })
    const queries = queriesAt(seq, 0)
    await session.attend(0, { queries })
    await session.retrieve(0, { queries })
    await feed(session, seq, 0, 101)
    await session.append(1, rows(seq, 0, 3))
    await session.attend(0, { queries })
    await engine().attendBatch([0, 1, 0].map((layer) => ({ session, layer, queries })))
    await session.retrieve(0, { queries })
    await refused(session.attend(9, { queries }), 'bad_layer')
    const { layers, calls, store } = session.stats()
    expect(layers).toEqual([
      { length: 101, zones: { sink: 4, retrieval: 80, local: 16, buffer: 1 } },
      { length: 3, zones: { sink: 3, retrieval: 0, local: 0, buffer: 0 } },
    ])
    expect([calls, store]).toEqual([{ append: 2, prefill: 0, attend: 5, retrieve: 2 }, 'f32'])
  })

  it.each(CONFIGS)('estimate before anything is allocated what a session then holds: %s', async (_, given) => {
    const allocated = backend().allocated()
    const estimate = engine().estimate(given)
    expect(backend().allocated()).toBe(allocated)
    const session = await engine().createSession(given)
    expect(session.memory()).toEqual(estimate)
    expect(estimate.total).toBe(estimate.rows + estimate.summary + estimate.scratch)
    const { headDim, capacity, kvHeads, layers, store } = given
    expect(estimate.rows).toBe(2 * layers * kvHeads * capacity * headDim * (store === 'f32' ? 4 : 2))
    const d = 2 ** Math.ceil(Math.log2(headDim))
    // On a GPU scratch may move into room that other sessions hold already.
    const taken = backend().allocated() - (backend().name === 'webgpu' ? 0 : allocated)
    expect(taken).toBeGreaterThanOrEqual(estimate.total + d)
    await session.dispose()
    expect(backend().allocated()).toBe(allocated)
  })

  it('stay what was estimated through the life of a session', async () => {
    const given = options({ store: 'f32', headDim: 16 }, { coarse: 'collision' })
    const session = await engine().createSession(given)
    await feed(session, seq, 0, 300, 100)
    for (let t = 0; t < 5; t++) await session.attend(0, { queries: queriesAt(seq, t) })
    await session.retrieve(0, { queries: queriesAt(seq, 5) })
    expect(session.memory()).toEqual(engine().estimate(given))
  })

  it('count f32 rows where no store is named, and nothing until the first append', async () => {
    const { store: _, ...open } = options()
    expect(engine().estimate(open)).toEqual(engine().estimate({ ...open, store: 'f32' }))
    const session = await engine().createSession(open)
    expect(session.memory()).toEqual({ rows: 0, summary: 0, scratch: 0, total: 0 })
    await feed(session, seq, 0, 1)
    expect(session.memory()).toEqual(engine().estimate(open))
  })
})
