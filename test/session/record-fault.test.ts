import { expect, it } from 'vitest'
import type { Backend } from '../../sdk/backend.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { stepOf } from '../support/gpu-tensors.ts'
import { openTwins } from '../support/offload.ts'
import { feed, options, rows, sequence, tokensOf } from '../support/sessions.ts'

onEveryBackend('a recording that breaks off', (backend, name) => {
  if (name !== 'webgpu') return it('is of a GPU alone', () => expect(backend().recorder).toBeUndefined())

  it('frees what it took, and the session has the length that it had', async () => {
    const failing: Backend = {
      ...backend(),
      dense: () => {
        throw new Error('no such luck')
      },
    }
    const engine = new Engine(failing)
    const gpu = engine.gpu as GPUDevice
    const session = await engine.createSession(options({ store: 'f32' }))
    const seq = sequence(305, 8)
    const { keys, values } = rows(seq, 0, 5)
    const [k, v, queries, output] = [keys, values, tokensOf(seq.queries, 8, 16, 0, 5), new Float32Array(320)].map(
      (data) => {
        const buffer = gpu.createBuffer({ size: data.byteLength, usage: 0x80 | 0x08 })
        gpu.queue.writeBuffer(buffer, 0, data as Float32Array<ArrayBuffer>)
        return buffer
      },
    )
    const create = gpu.createBuffer.bind(gpu)
    const spare: { alive: boolean }[] = []
    gpu.createBuffer = (what) => {
      const buffer = create(what)
      if (what.label !== 'lse') return buffer
      const destroy = buffer.destroy.bind(buffer)
      const one = { alive: true }
      spare.push(one)
      buffer.destroy = () => {
        one.alive = false
        return destroy()
      }
      return buffer
    }
    try {
      const given = { keys: k, values: v, queries, output, tokens: 5 }
      expect(() => session.encodePrefill(gpu.createCommandEncoder(), 0, given)).toThrow('no such luck')
      expect(spare).toEqual([{ alive: false }])
    } finally {
      gpu.createBuffer = create
    }
    expect(session.length()).toBe(0)
    await session.dispose()
    for (const buffer of [k, v, queries, output]) buffer.destroy()
  })

  it('lets tokens of a step in two submits not count', async () => {
    const failing: Backend = {
      ...backend(),
      rerank: () => {
        throw new Error('no such luck')
      },
    }
    const engine = new Engine(failing)
    const gpu = engine.gpu as GPUDevice
    const seq = sequence(306, 80)
    const { host, device } = await openTwins(engine, { store: 'f32', capacity: 128 })
    for (const session of [device, host]) {
      await feed(session, seq, 0, 70)
      await session.reserve(1)
    }
    const calls = device.stats().calls
    const items = [device, host].map((session) => ({ session, layer: 0, ...stepOf(gpu, seq, 70) }))
    expect(() => engine.encodeRetrieveBatch(gpu.createCommandEncoder(), items)).toThrow('no such luck')
    for (const session of [device, host]) {
      expect(session.length()).toBe(70)
      expect(session.stats().calls).toEqual(calls)
    }
  })
})
