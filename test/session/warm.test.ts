import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { feed, options, queriesAt, refused, rows, sequence, tokensOf } from '../support/sessions.ts'

onEveryBackend('warm', (backend, name) => {
  const given = options({ store: 'bf16' })

  it('checks the configuration and leaves nothing behind, two at once too', async () => {
    const engine = new Engine(backend())
    const before = backend().allocated()
    await Promise.all([engine.warm(given), engine.warm(given)])
    expect(backend().allocated()).toBe(before)
    await refused(engine.warm(options({ headDim: 12 })), 'bad_head_dim')
  })

  if (name !== 'webgpu') return

  it('leaves no pipeline to be compiled by the calls that follow', async () => {
    const engine = new Engine(backend())
    await engine.warm(given)
    const device = engine.gpu as GPUDevice
    const compiled: (string | undefined)[] = []
    const create = device.createComputePipeline.bind(device)
    device.createComputePipeline = (what) => {
      compiled.push(what.label)
      return create(what)
    }
    const seq = sequence(311, 300)
    const session = await engine.createSession(given)
    await session.prefill(0, { ...rows(seq, 0, 30), queries: tokensOf(seq.queries, 300, 16, 0, 30) })
    await feed(session, seq, 30, 300)
    await session.attend(0, { queries: queriesAt(seq, 299) })
    await session.retrieve(0, { queries: queriesAt(seq, 299) })
    const encoder = device.createCommandEncoder()
    const [keys, queries, output] = [64, 256, 256].map((size) => device.createBuffer({ size, usage: 0x80 }))
    const releases = [
      session.encodeAppend(encoder, 0, { keys, values: keys, tokens: 1, dtype: 'bf16' }),
      session.encodeAttend(encoder, 0, { queries, output }),
    ]
    device.queue.submit([encoder.finish()])
    for (const release of releases) release()
    expect((await session.check()).ok).toBe(true)
    expect(compiled).toEqual([])
  })
})
