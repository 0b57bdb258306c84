import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import { feed, options, queriesAt, refused, sequence } from '../support/sessions.ts'

const BYTES = 4 * 16 * 4

onEveryBackend('recording a batch', (backend, name) => {
  const seq = sequence(161, 400)
  const open = (engine: Engine, store: 'f32' | undefined = 'f32') => engine.createSession(options({ layers: 1, store }))

  if (name !== 'webgpu') {
    it('is refused', async () => {
      const engine = new Engine(backend())
      const [session, buffer] = [await open(engine), {} as GPUBuffer]
      const items = [{ session, layer: 0, queries: buffer, output: buffer }]
      await refused(() => engine.encodeAttendBatch({} as GPUCommandEncoder, items), 'backend_unavailable')
    })
    return
  }

  it('equals attendBatch to the bit, dense and sparse items together', async () => {
    const engine = new Engine(backend())
    const gpu = engine.gpu!
    const lengths = [5, 180, 333]
    const sessions = await Promise.all(lengths.map(() => open(engine)))
    for (const [i, session] of sessions.entries()) await feed(session, seq, 0, lengths[i])
    const all = lengths.map((n) => queriesAt(seq, n))
    const want = await engine.attendBatch(sessions.map((session, i) => ({ session, layer: 0, queries: all[i] })))
    const size = lengths.length * BYTES
    const queries = gpu.createBuffer({ size, usage: 0x80 | 0x08 })
    const output = gpu.createBuffer({ size, usage: 0x80 | 0x04 })
    all.forEach((q, i) => gpu.queue.writeBuffer(queries, i * BYTES, q.buffer as ArrayBuffer, q.byteOffset, BYTES))
    const staging = gpu.createBuffer({ size, usage: 0x01 | 0x08 })
    const encoder = gpu.createCommandEncoder()
    const part = (buffer: GPUBuffer, i: number) => ({ buffer, offset: i * BYTES })
    const items = sessions.map((session, i) => {
      return { session, layer: 0, queries: part(queries, i), output: part(output, i) }
    })
    const release = engine.encodeAttendBatch(encoder, items)
    encoder.copyBufferToBuffer(output, 0, staging, 0, size)
    gpu.queue.submit([encoder.finish()])
    release()
    await staging.mapAsync(1)
    const got = new Uint8Array(staging.getMappedRange().slice(0))
    want.forEach(({ output: one }, i) => {
      const bytes = new Uint8Array(one.buffer, one.byteOffset, one.byteLength)
      expectSame(got.slice(i * BYTES, (i + 1) * BYTES), bytes, `item ${i}`)
    })
    for (const session of sessions) expect(session.stats().calls.attend).toBe(2)
    for (const buffer of [queries, output, staging]) buffer.destroy()
  })

  it('refuses a session twice and what is no array; records nothing of no items', async () => {
    const engine = new Engine(backend())
    const session = await open(engine)
    const [queries, output] = [0, 0].map(() => engine.gpu!.createBuffer({ size: BYTES, usage: 0x80 }))
    const item = { session, layer: 0, queries, output }
    const encoder = engine.gpu!.createCommandEncoder()
    await refused(() => engine.encodeAttendBatch(encoder, [item, item]), 'bad_config')
    await refused(() => engine.encodeAttendBatch(encoder, item as never), 'bad_config')
    await refused(() => engine.encodeAttendBatch(encoder, [{ ...item, layer: 1 }]), 'bad_layer')
    engine.encodeAttendBatch(encoder, [])()
    encoder.finish()
  })
})
