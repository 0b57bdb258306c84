import {
  abortAllDurableObjects,
  listDurableObjectIds,
  runDurableObjectAlarm,
  runInDurableObject,
} from 'cloudflare:test'
import { env, exports } from 'cloudflare:workers'
import { describe, expect, test } from 'vitest'
import { buildFrame, parseFrame } from '../../../sdk/http/tensors.ts'
import { createReferenceBackend, Engine } from '../../../sdk/index.ts'
import { append, attend, call, numbers, open, POLICY, rows, SHAPE, statusOf, stub, tablesOf } from './support.ts'

describe('a session in a Durable Object', () => {
  test('has every acknowledged append after an eviction between two of them', async () => {
    const id = await open()
    const engine = new Engine(createReferenceBackend())
    const local = await engine.createSession({ ...SHAPE, store: 'f32', policy: POLICY })
    const lengths = [0, 0]
    for (const [layer, tokens] of [
      [0, 70],
      [1, 3],
      [0, 1],
      [1, 64],
      [0, 1],
    ]) {
      const given = rows(tokens)
      expect((await append(id, layer, lengths[layer], given)).status).toBe(200)
      await local.append(layer, given)
      lengths[layer] += tokens
      await abortAllDurableObjects()
    }
    for (const layer of [0, 1]) {
      const queries = numbers(64)
      const [got, want] = [await attend(id, layer, queries), (await local.attend(layer, { queries })).output]
      got.forEach((value, i) => expect(value).toBeCloseTo(want[i], 4))
    }
    const view = (await (await call(`/v1/sessions/${id}`)).json()) as { lengths: number[] }
    expect(view.lengths).toEqual(lengths)
    await engine.dispose()
  })

  test('gives the same bytes before an eviction and after it', async () => {
    const id = await open({ policy: { ...POLICY, coarse: 'collision' } })
    await append(id, 0, 0, rows(300))
    for (let offset = 300; offset < 320; offset++) await append(id, 0, offset, rows(1))
    const queries = numbers(64)
    const before = await attend(id, 0, queries)
    await abortAllDurableObjects()
    expect(await attend(id, 0, queries)).toEqual(before)
  })

  test('remembers truncations, of whole rows and within one', async () => {
    const id = await open()
    const [first, second] = [rows(40), rows(10)]
    await append(id, 0, 0, first)
    await append(id, 1, 0, rows(5))
    await append(id, 0, 40, rows(20))
    const truncate = (length: number) => call(`/v1/sessions/${id}/truncate?length=${length}`, { method: 'POST' })
    expect((await truncate(50)).status).toBe(200)
    expect((await truncate(30)).status).toBe(200)
    await append(id, 0, 30, second)
    const queries = numbers(64)
    const before = await attend(id, 0, queries)
    await abortAllDurableObjects()
    expect(await attend(id, 0, queries)).toEqual(before)
    expect(await (await call(`/v1/sessions/${id}`)).json()).toMatchObject({ lengths: [40, 5] })
  })

  test('cuts an append of several MB into rows below 2 MB', async () => {
    const id = await open({ headDim: 256, capacity: 2048 })
    expect((await append(id, 1, 0, rows(1500, 256), 256)).status).toBe(200)
    const sizes = await runInDurableObject(stub(id), (_, { storage }) =>
      storage.sql.exec<{ n: number }>('SELECT length(bytes) AS n FROM rows').toArray(),
    )
    expect(sizes.length).toBeGreaterThan(5)
    expect(Math.max(...sizes.map(({ n }) => n))).toBeLessThan(2_000_000)
    await abortAllDurableObjects()
    expect(await (await call(`/v1/sessions/${id}`)).json()).toMatchObject({ lengths: [0, 1500] })
  })

  test('keeps the store that its first rows gave it', async () => {
    const id = await open({ store: undefined })
    await append(id, 0, 0, rows(10))
    await call(`/v1/sessions/${id}/truncate?length=0`, { method: 'POST' })
    await abortAllDurableObjects()
    expect(await (await call(`/v1/sessions/${id}`)).json()).toMatchObject({ lengths: [0, 0], store: 'f32' })
  })

  test('forks by a snapshot into an object of its own, which lasts as well', async () => {
    const id = await open({ ttl: 1234 })
    await append(id, 0, 0, rows(100))
    const forked = await call(`/v1/sessions/${id}/fork`, { method: 'POST' })
    expect(forked.status).toBe(201)
    const { id: copy, ttl } = (await forked.json()) as { id: string; ttl: number }
    expect([copy === id, ttl]).toEqual([false, 1234])
    const queries = numbers(64)
    const want = await attend(id, 0, queries)
    await append(copy, 0, 100, rows(1))
    await append(id, 0, 100, rows(2))
    await abortAllDurableObjects()
    expect(await (await call(`/v1/sessions/${copy}`)).json()).toMatchObject({ lengths: [101, 0] })
    expect(await (await call(`/v1/sessions/${id}`)).json()).toMatchObject({ lengths: [102, 0] })
    await call(`/v1/sessions/${copy}/truncate?length=100`, { method: 'POST' })
    expect(await attend(copy, 0, queries)).toEqual(want)
  })

  test('answers a retry under the same key as the first time, also after an eviction', async () => {
    const key = { headers: { 'idempotency-key': crypto.randomUUID() } }
    const id = await open({}, key)
    expect(await open({}, key)).toBe(id)
    await abortAllDurableObjects()
    expect(await open({}, key)).toBe(id)
    const fork = async () => {
      const response = await call(`/v1/sessions/${id}/fork`, { ...key, method: 'POST' })
      expect(response.status).toBe(201)
      return ((await response.json()) as { id: string }).id
    }
    const copy = await fork()
    expect(copy).not.toBe(id)
    expect(await fork()).toBe(copy)
    expect(await open()).not.toBe(id)
  })

  test('is unknown to others, with one answer for all that is unknown', async () => {
    const id = await open()
    const others = ['AAAAAAAAAAAAAAAAAAAAAA', 'short', '%0d%0aset-cookie:x']
    const bodies = await Promise.all(others.map(async (other) => (await call(`/v1/sessions/${other}`)).text()))
    const foreign = await call(`/v1/sessions/${id}`, {}, 'token-of-bob')
    expect([foreign.status, new Set([...bodies, await foreign.text()]).size]).toEqual([404, 1])
  })

  test('is reached only with a token: without one no object is made', async () => {
    const objects = (await listDurableObjectIds(env.SESSIONS)).length
    for (const path of ['', '/BBBBBBBBBBBBBBBBBBBBBB', '/BBBBBBBBBBBBBBBBBBBBBB/fork', ':restore', '/short'])
      for (const init of [{}, { method: 'POST', body: '{}' }]) {
        const answers = [
          await call(`/v1/sessions${path}`, init, 'nobody'),
          await exports.default.fetch(`https://pariskv.test/v1/sessions${path}`, init),
        ]
        expect(answers.map(({ status }) => status)).toEqual([401, 401])
      }
    expect((await listDurableObjectIds(env.SESSIONS)).length).toBe(objects)
  })

  test('takes its id from nobody but the Worker', async () => {
    const headers = { 'x-pariskv-session': 'CCCCCCCCCCCCCCCCCCCCCC' }
    expect(await open({}, { headers })).not.toBe(headers['x-pariskv-session'])
    const id = await open()
    expect((await call(`/v1/sessions/${id}`, { headers })).status).toBe(200)
  })

  test('goes with everything that it stored', async () => {
    const id = await open()
    await append(id, 0, 0, rows(10))
    expect((await call(`/v1/sessions/${id}`, { method: 'DELETE' })).status).toBe(204)
    expect(await statusOf(`/v1/sessions/${id}`)).toBe(404)
    await abortAllDurableObjects()
    expect(await statusOf(`/v1/sessions/${id}`)).toBe(404)
    expect(await tablesOf(id)).toEqual([])
  })

  test('is taken away by its alarm once it has been idle for too long, and not before', async () => {
    const id = await open({ ttl: 60 })
    await append(id, 0, 0, rows(10))
    expect(await runDurableObjectAlarm(stub(id))).toBe(true)
    expect(await statusOf(`/v1/sessions/${id}`)).toBe(200)
    await abortAllDurableObjects()
    await runInDurableObject(stub(id), (_, { storage }) => {
      storage.sql.exec('UPDATE session SET used = used - 67000')
    })
    expect(await runDurableObjectAlarm(stub(id))).toBe(true)
    expect(await tablesOf(id)).toEqual([])
    expect(await statusOf(`/v1/sessions/${id}`)).toBe(404)
  })

  test('refuses what does not fit its memory, and goes on', async () => {
    const body = JSON.stringify({ ...SHAPE, capacity: 2_000_000 })
    const refused = await call('/v1/sessions', { method: 'POST', body })
    expect([refused.status, refused.headers.get('content-type')]).toEqual([507, 'application/problem+json'])
    expect(await refused.json()).toMatchObject({ code: 'out_of_memory' })
    await open()
  })

  test('steps over a WebSocket, and stores what came over it', async () => {
    const id = await open()
    const upgraded = await call(`/v1/sessions/${id}/socket`, { headers: { upgrade: 'websocket' } })
    expect(upgraded.status).toBe(101)
    const { webSocket: socket } = upgraded as unknown as { webSocket: WebSocket & { accept(): void } }
    socket.binaryType = 'arraybuffer'
    socket.accept()
    for (let offset = 0; offset < 3; offset++) {
      const { keys, values } = rows(1)
      const answer = new Promise<MessageEvent>((resolve) => socket.addEventListener('message', resolve, { once: true }))
      const tensors = [
        ...[
          { name: 'keys', shape: [2, 1, 16], data: keys },
          { name: 'values', shape: [2, 1, 16], data: values },
        ],
        { name: 'queries', shape: [4, 16], data: numbers(64) },
      ]
      socket.send(buildFrame(tensors, { op: 'step', layer: '1', offset: String(offset) }))
      const { metadata, tensors: got } = parseFrame(new Uint8Array((await answer).data as ArrayBuffer))
      expect([metadata.get('status'), [...got.keys()]]).toEqual(['200', ['output', 'lse']])
    }
    socket.close()
    await abortAllDurableObjects()
    expect(await (await call(`/v1/sessions/${id}`)).json()).toMatchObject({ lengths: [0, 3] })
  })
})
