import { afterAll, describe, expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { shareWebgpu } from '../support/gpu.ts'
import { options, queriesAt, refused, rows, sequence } from '../support/sessions.ts'

const engines: Engine[] = []
afterAll(async () => {
  for (const engine of engines) await engine.dispose()
})
async function open() {
  const backend = await shareWebgpu()
  const engine = new Engine(backend)
  engines.push(engine)
  return { backend, engine }
}

describe('memory of the webgpu backend', () => {
  const shapes = [
    options({ layers: 2, kvHeads: 2, queryHeads: 8, headDim: 64, capacity: 1 << 15, store: 'bf16' }, { local: 256 }),
    options({ layers: 4, kvHeads: 1, queryHeads: 8, headDim: 128, capacity: 1 << 14, store: 'f32' }, { k: 100 }),
    options({ kvHeads: 8, queryHeads: 32, headDim: 128, capacity: 1 << 12, store: 'bf16' }, { coarse: 'collision' }),
    options({ headDim: 256, queryHeads: 2, kvHeads: 2, capacity: 1 << 16, store: 'f16' }, { normWeighted: true }),
  ]
  it('is what was estimated, within 5%, whatever sessions there are', async () => {
    const { backend, engine } = await open()
    expect(backend.allocated()).toBe(0)
    const sessions: Session[] = []
    let estimated = 0
    for (const shape of shapes)
      for (let copy = 0; copy < 3; copy++) {
        const { total } = engine.estimate(shape)
        expect(total).toBeGreaterThan(1 << 24)
        const before = backend.allocated()
        sessions.push(await engine.createSession(shape))
        estimated += total
        if (before === 0) expect(Math.abs(backend.allocated() / total - 1)).toBeLessThan(0.05)
        expect(Math.abs(backend.allocated() / estimated - 1)).toBeLessThan(0.05)
      }
    for (const session of sessions) await session.dispose()
    expect(backend.allocated()).toBe(0)
  })

  it('counts the kernels’ working memory within these 5%', async () => {
    const { backend, engine } = await open()
    const shape = options({ headDim: 64, capacity: 1 << 15, store: 'f32' }, { coarse: 'collision' })
    const seq = sequence(6, 400, { headDim: 64 })
    const session = await engine.createSession(shape)
    await session.append(0, rows(seq, 0, 400))
    await session.retrieve(0, { queries: queriesAt(seq, 399) })
    const { total } = engine.estimate(shape)
    expect(total).toBeGreaterThan(1 << 24)
    expect(Math.abs(backend.allocated() / total - 1)).toBeLessThan(0.05)
    await session.dispose()
    expect(backend.allocated()).toBe(0)
  })

  it('never gives a range again that another buffer of the same GPUBuffer had', async () => {
    const { backend } = await open()
    const request = { label: 'a', bytes: 1000, together: 'a' }
    const [a, b] = await backend.alloc([request, request])
    backend.write(a, 0, new Uint8Array(1000).fill(7))
    backend.free([a])
    const [c, d] = await backend.alloc([request, request])
    for (const fresh of [c, d]) expect(await backend.read(fresh, 0, 1000)).toEqual(new Uint8Array(1000))
    backend.free([b, c, d])
    expect(backend.allocated()).toBe(0)
  })

  it('gives nothing where the device runs out, and goes on', async () => {
    const { backend, engine } = await open()
    const shape = options({ store: 'f32' }, { denseBelow: 1000 })
    const seq = sequence(1, 200)
    const session = await engine.createSession(shape)
    await session.append(0, rows(seq, 0, 200))
    const before = await session.attend(0, { queries: queriesAt(seq, 199) })
    const allocated = backend.allocated()
    const huge = { ...shape, layers: 128, headDim: 128, kvHeads: 8, queryHeads: 8, capacity: 1 << 18 }
    const [refusal] = await Promise.all([
      refused(engine.createSession(huge), 'out_of_memory'),
      engine.createSession(shape).then((other) => other.dispose()),
    ])
    expect((refusal.cause as Error).constructor.name).toBe('GPUOutOfMemoryError')
    expect(backend.allocated()).toBe(allocated)
    await session.attend(0, { queries: queriesAt(seq, 199) }).then((after) => expect(after).toEqual(before))
    const other = await engine.createSession(shape)
    await other.append(0, rows(seq, 0, 200))
    expect(await other.attend(0, { queries: queriesAt(seq, 199) })).toEqual(before)
  })
})
