import { afterEach, describe, expect, it } from 'vitest'
import { createWebgpuBackend } from '../../sdk/backends/webgpu.ts'
import type { GpuBuf } from '../../sdk/backends/webgpu-memory.ts'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { openDevice, sharedDevice } from '../support/gpu.ts'
import { bytesOf, options, queriesAt, refused, rows, sequence, tokensOf } from '../support/sessions.ts'

const N = 200
const seq = sequence(1, N)
// The zone is retrieved as a whole: fewer kernels to compile.
const given = options({ store: 'f32' }, { k: N })

const engines: Engine[] = []
/** An engine on a device whose loss `lose` can tell of although it lives: the shared one, or one of its own. */
async function open(own?: GPUDevice) {
  const device = own ?? (await sharedDevice())
  let lose: (info: GPUDeviceLostInfo) => void = () => {}
  const injected = new Promise<GPUDeviceLostInfo>((resolve) => {
    lose = resolve
  })
  const { lost } = device
  Object.defineProperty(device, 'lost', { value: Promise.race([lost, injected]), configurable: true })
  const engine = new Engine(await createWebgpuBackend(device))
  Object.defineProperty(device, 'lost', { value: lost, configurable: true })
  engines.push(engine)
  return { engine, device, lose: () => lose({ reason: 'unknown', message: 'injected' } as GPUDeviceLostInfo) }
}
async function filled(engine: Engine): Promise<Session> {
  const session = await engine.createSession(given)
  await session.append(0, rows(seq, 0, N - 4))
  return session
}
afterEach(async () => {
  for (const engine of engines.splice(0)) await engine.dispose()
})

const queries = queriesAt(seq, N - 1)
/** Those that give a result first. */
const calls: Record<string, (session: Session) => Promise<unknown>> = {
  attend: (session) => session.attend(0, { queries }),
  retrieve: (session) => session.retrieve(0, { queries }),
  prefill: (session) =>
    session.prefill(0, { ...rows(seq, N - 4, N - 2), queries: tokensOf(seq.queries, N, seq.d, N - 4, N - 2) }),
  snapshot: (session) => bytesOf(session.snapshot()),
  append: (session) => session.append(0, rows(seq, N - 4, N - 3)),
  truncate: (session) => session.truncate(3),
}

describe('faults of a webgpu device', () => {
  type Opened = Awaited<ReturnType<typeof open>>
  const ways: [string, () => Promise<Opened>, (opened: Opened) => void][] = [
    ['an injected loss', () => open(), ({ lose }) => lose()],
    ['a destroyed device', async () => open(await openDevice()), ({ device }) => device.destroy()],
  ]
  for (const [name, way, fail] of ways)
    it(`answers ${name} with device_lost, in flight and after, and opens again`, async () => {
      const opened = await way()
      const { engine } = opened
      const sessions: Session[] = []
      for (const _ of Object.keys(calls)) sessions.push(await filled(engine))
      const before = await sessions[0].attend(0, { queries })
      const { backend } = sessions[0].state
      const { readAll } = backend
      // The first session's result is on its way when the device fails; others have recorded, or are about to.
      backend.readAll = (parts) => {
        const result = readAll(parts)
        fail(opened)
        return result
      }
      const flying = Object.values(calls).map((call, i) => call(sessions[i]))
      for (const outcome of (await Promise.allSettled(flying)).slice(0, 4))
        expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'device_lost' } })
      backend.readAll = readAll
      for (const after of Object.values(calls)) await refused(after(sessions[0]), 'device_lost')
      await refused(engine.createSession(given), 'device_lost')
      await sessions[0].dispose()
      await engine.dispose()
      const again = await filled((await open()).engine)
      expect(await again.attend(0, { queries })).toEqual(before)
    })

  it('tells an append under way of a loss', async () => {
    const { engine, lose } = await open()
    const session = await filled(engine)
    const flying = calls.append(session)
    lose()
    await refused(flying, 'device_lost')
  })

  it('never gives a result of commands that the device refused', async () => {
    const { engine } = await open()
    const session = await filled(engine)
    await session.attend(0, { queries })
    const { buf } = session.state.cache!.layer(0).keys
    ;(buf as GpuBuf).gpu.destroy()
    const error = await refused(session.attend(0, { queries }), 'device_lost')
    expect(error.got).toContain('refused command')
    await refused(session.retrieve(0, { queries }), 'device_lost')
    await engine.dispose()
  })

  it('tells of a recording that could not be submitted', async () => {
    const { engine, device } = await open()
    const session = await filled(engine)
    const usage = 0x80 | 0x04 | 0x08
    const [input, output] = [1, 2].map(() => device.createBuffer({ size: queries.byteLength, usage }))
    const encoder = device.createCommandEncoder()
    const release = session.encodeAttend(encoder, 0, { queries: input, output })
    release()
    device.queue.submit([encoder.finish()])
    await refused(session.attend(0, { queries }), 'device_lost')
    for (const buffer of [input, output]) buffer.destroy()
  })

  it('frees what a recording has taken when its body throws', async () => {
    const device = await openDevice()
    const backend = await createWebgpuBackend(device)
    const [buf] = await backend.alloc([{ label: 'x', bytes: 1 << 16 }])
    let alive = 0
    const create = device.createBuffer.bind(device)
    device.createBuffer = (descriptor) => {
      const buffer = create(descriptor)
      const destroy = buffer.destroy.bind(buffer)
      alive++
      buffer.destroy = () => {
        alive--
        buffer.destroy = destroy
        destroy()
      }
      return buffer
    }
    const record = (fail: boolean) =>
      backend.recordInto(device.createCommandEncoder(), () => {
        backend.write(buf, 0, new Uint8Array(1 << 16))
        backend.write(buf, 0, new Uint8Array(16))
        expect(alive).toBe(2)
        if (fail) throw new Error('stop')
      })
    expect(() => record(true)).toThrow('stop')
    expect(alive).toBe(0)
    record(false)()
    expect(alive).toBe(0)
    backend.dispose()
    device.destroy()
  })
})
