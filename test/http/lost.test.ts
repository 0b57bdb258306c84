import { expect, it, vi } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { BackendUnavailable, ParisError } from '../../sdk/errors.ts'
import { createApp } from '../../sdk/http/app.ts'
import { buildFrame } from '../../sdk/http/tensors.ts'
import { Session } from '../../sdk/session/session.ts'
import { openWebgpu } from '../support/gpu.ts'
import { sequence } from '../support/sessions.ts'
import { journalWith, local, openEngine } from './served.ts'
import { expectProblem, queryTensor, rowTensors, SMALL } from './support.ts'

const seq = sequence(3, 100)
const lost = () => new ParisError('device_lost', { where: 'test', got: 'a lost device', want: 'one', fix: 'None.' })

/** Engines whose device can be lost at will, the latest first. */
function fragile() {
  const fail: (() => void)[] = []
  const open = async () => {
    const engine = await openEngine()
    const { backend } = engine as unknown as { backend: { check?: () => void } }
    let gone = false
    backend.check = () => {
      if (gone) throw lost()
    }
    fail.unshift(() => {
      gone = true
    })
    return engine
  }
  return { open, lose: () => fail[0](), opened: () => fail.length }
}

it('a lost device is told, its sessions are gone, and the next engine serves', async () => {
  const { open, lose, opened } = fragile()
  const { app, alice, bob } = await local({ engine: open })
  const { epoch } = await alice.json('GET', '/v1/info')
  const id = await alice.open()
  const other = await alice.open()
  await alice.append(id, seq, 0, 20)
  lose()
  const answer = await alice.send('POST', `/v1/sessions/${id}/layers/0/attend`, buildFrame([queryTensor(seq, 0)]))
  expect(answer.headers.get('retry-after')).toBe('1')
  await expectProblem(answer, 'device_lost')
  for (const gone of [id, other]) {
    await expectProblem(await alice.send('GET', `/v1/sessions/${gone}`), 'session_lost')
    await expectProblem(await bob.send('GET', `/v1/sessions/${gone}`), 'not_found')
  }
  const fresh = await alice.json('POST', '/v1/sessions', JSON.stringify(SMALL))
  expect(fresh.epoch).not.toBe(epoch)
  expect(opened()).toBe(2)
  await alice.append(String(fresh.id), seq, 0, 20)
  await app.dispose()
})

it('calls that wait on a lost device are never answered as done', async () => {
  const { open, lose } = fragile()
  const { app, alice } = await local({ engine: open })
  const id = await alice.open()
  await alice.append(id, seq, 0, 20)
  const calls = Array.from({ length: 20 }, (_, i) => {
    if (i === 10) lose()
    return alice.send('POST', `/v1/sessions/${id}/layers/0/attend`, buildFrame([queryTensor(seq, i)]))
  })
  const statuses = (await Promise.all(calls)).map(({ status }) => status)
  for (const status of statuses) expect([503, 410]).toContain(status)
  await app.dispose()
})

it('an engine that cannot be opened again is told as such, and tried again', async () => {
  const { open, lose } = fragile()
  let broken = false
  const { app, alice } = await local({
    limits: { deadline: 100 },
    engine: async () => {
      if (broken) throw new BackendUnavailable('webgpu', 'no device', 'Wait.')
      return open()
    },
  })
  const id = await alice.open()
  broken = true
  lose()
  await expectProblem(
    await alice.send('POST', `/v1/sessions/${id}/layers/0/attend`, buildFrame([queryTensor(seq, 0)])),
    'device_lost',
  )
  await expectProblem(await alice.send('POST', '/v1/sessions', JSON.stringify(SMALL)), 'deadline')
  expect((await app.request('/v2/health/ready')).status).toBe(503)
  expect((await app.request('/ping')).status).toBe(204)
  broken = false
  const until = Date.now() + 5000
  while ((await app.request('/ping')).status !== 200 && Date.now() < until)
    await new Promise((resolve) => setTimeout(resolve, 20))
  expect((await app.request('/ping')).status).toBe(200)
  await alice.open()
  await app.dispose()
})

it('an engine that was handed in open is not replaced', async () => {
  const { open, lose } = fragile()
  const engine = await open()
  const { app, alice } = await local({ engine })
  const id = await alice.open()
  lose()
  const body = buildFrame([queryTensor(seq, 0)])
  await expectProblem(await alice.send('POST', `/v1/sessions/${id}/layers/0/attend`, body), 'device_lost')
  await expectProblem(await alice.send('POST', '/v1/sessions', JSON.stringify(SMALL)), 'device_lost')
  await app.dispose()
})

it('an engine that computes something else never becomes ready', async () => {
  const wrong = async () => {
    const engine = await openEngine()
    const { backend } = engine as unknown as {
      backend: Engine['info'] & { readAll: (...args: never[]) => Promise<Uint8Array[]> }
    }
    const readAll = backend.readAll.bind(backend)
    backend.readAll = async (...args) => {
      const all = await readAll(...args)
      for (const bytes of all) bytes[bytes.length - 2] ^= 0x40
      return all
    }
    return engine
  }
  const app = createApp({ engine: wrong, auth: 'off' })
  await expect(app.ready()).rejects.toMatchObject({ code: 'backend_unavailable' })
  expect((await app.request('/v2/health/ready')).status).toBe(503)
  await expectProblem(
    await app.request('/v1/sessions', { method: 'POST', body: JSON.stringify(SMALL) }),
    'backend_unavailable',
  )
  await app.dispose()
})

it('a device that is lost between requests is found out at once', async () => {
  const losses: (() => void)[] = []
  const open = async () => {
    const lost = new Promise<void>((resolve) => losses.push(resolve))
    return Object.defineProperty(await openEngine(), 'gpu', { value: { lost } })
  }
  const { app, alice } = await local({ engine: open })
  const id = await alice.open()
  losses[0]()
  await new Promise((resolve) => setTimeout(resolve, 10))
  await expectProblem(await alice.send('GET', `/v1/sessions/${id}`), 'session_lost')
  await alice.open()
  expect(losses.length).toBe(2)
  await app.dispose()
})

it('a session whose device is lost while it is stored is taken out of the store again', async () => {
  const losses: (() => void)[] = []
  const open = async () => {
    const lost = new Promise<void>((resolve) => losses.push(resolve))
    return Object.defineProperty(await openEngine(), 'gpu', { value: { lost } })
  }
  const stored = new Set<string>()
  const journal = journalWith({
    created: async (id) => {
      stored.add(id)
      losses[0]()
      await new Promise((resolve) => setTimeout(resolve, 10))
    },
    removed: async (id) => void stored.delete(id),
  })
  const { app, alice } = await local({ engine: open, journal })
  await expectProblem(await alice.send('POST', '/v1/sessions', JSON.stringify(SMALL)), 'device_lost')
  expect(stored.size).toBe(0)
  await alice.open()
  expect(stored.size).toBe(1)
  await app.dispose()
})

it('a session is lost where a call that failed cannot be taken back', async () => {
  const journal = journalWith({
    appended: async () => {
      throw new Error('the disk is full')
    },
  })
  const { app, alice } = await local({ journal })
  const [id, other] = [await alice.open(), await alice.open()]
  const body = buildFrame(rowTensors(seq, 0, 20))
  const failing = async () => {
    throw new Error('no memory')
  }
  const undo = vi.spyOn(Session.prototype, 'undo').mockReturnValue(failing)
  await expectProblem(await alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=0`, body), 'session_lost')
  undo.mockRestore()
  await expectProblem(await alice.send('GET', `/v1/sessions/${id}`), 'session_lost')
  await expectProblem(await alice.send('PUT', `/v1/sessions/${other}/layers/0/kv?offset=0`, body), 'not_stored')
  expect(await alice.lengths(other)).toEqual([0, 0])
  await app.dispose()
})

it('a device that is lost while a call is taken back is told, and replaced', async () => {
  const { open, lose, opened } = fragile()
  const journal = journalWith({
    appended: async () => {
      lose()
      throw new Error('the disk is full')
    },
  })
  const { app, alice } = await local({ engine: open, journal })
  const [id, other] = [await alice.open(), await alice.open()]
  const body = buildFrame(rowTensors(seq, 0, 20))
  await expectProblem(await alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=0`, body), 'device_lost')
  for (const gone of [id, other]) await expectProblem(await alice.send('GET', `/v1/sessions/${gone}`), 'session_lost')
  await alice.open()
  expect(opened()).toBe(2)
  await app.dispose()
})

/** Why a device is not destroyed here, or nothing. */
async function notHere(): Promise<string> {
  try {
    const backend = await openWebgpu()
    const software = backend.recorder?.device.adapterInfo.isFallbackAdapter
    backend.dispose()
    if (!software || process.env.PARISKV_TEST === 'full') return ''
    return 'a software GPU compiles the pipelines of a fresh device for a minute; PARISKV_TEST=full runs it'
  } catch (error) {
    if (error instanceof BackendUnavailable) return error.message
    throw error
  }
}

const reason = await notHere()
if (reason) console.log(`a destroyed GPUDevice: skipped, ${reason}`)

it.skipIf(reason)('a GPUDevice that is destroyed is found out and replaced', { timeout: 300_000 }, async () => {
  const engines: Engine[] = []
  const open = async () => {
    const engine = new Engine(await openWebgpu())
    engines.push(engine)
    return engine
  }
  const { app, alice } = await local({ engine: open, limits: { deadline: 200_000 } })
  const id = await alice.open({ layers: 1 })
  engines[0].gpu?.destroy()
  const answer = await alice.send('POST', `/v1/sessions/${id}/layers/0/attend`, buildFrame([queryTensor(seq, 0)]))
  expect([410, 503]).toContain(answer.status)
  await app.ready()
  expect(engines.length).toBe(2)
  await expectProblem(await alice.send('GET', `/v1/sessions/${id}`), 'session_lost')
  await alice.append(await alice.open({ layers: 1 }), seq, 0, 5)
  await app.dispose()
})
