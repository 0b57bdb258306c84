import { abortAllDurableObjects, runDurableObjectAlarm, runInDurableObject } from 'cloudflare:test'
import { exports } from 'cloudflare:workers'
import { describe, expect, test } from 'vitest'
import { SessionLog } from '../../../adapters/workers-log.ts'
import { base64url } from '../../../sdk/http/ids.ts'
import { append, call, open, POLICY, rows, SHAPE, statusOf, stub, tablesOf } from './support.ts'

const keyed = () => ({ headers: { 'idempotency-key': crypto.randomUUID() } })

async function snapshotOf(id: string): Promise<ArrayBuffer> {
  return (await call(`/v1/sessions/${id}/snapshot`)).arrayBuffer()
}

function create(key: RequestInit, extra: object = {}): Promise<Response> {
  return call('/v1/sessions', { ...key, method: 'POST', body: JSON.stringify({ ...SHAPE, policy: POLICY, ...extra }) })
}

const idOf = async (response: Response) => ((await response.json()) as { id: string }).id

describe('a retry', () => {
  test('of another request under the same key is refused, also after an eviction', async () => {
    const key = keyed()
    const id = await idOf(await create(key))
    for (const evict of [async () => {}, abortAllDurableObjects]) {
      await evict()
      const other = await create(key, { capacity: 256 })
      expect([other.status, await other.json()]).toMatchObject([422, { code: 'idempotency_mismatch' }])
      const same = await create(key)
      expect([same.status, same.headers.get('idempotent-replayed'), await idOf(same)]).toEqual([201, 'true', id])
    }
  })

  test('of a restore goes by all of its bytes', async () => {
    const id = await open()
    await append(id, 0, 0, rows(20))
    const first = await snapshotOf(id)
    await append(id, 0, 20, rows(1))
    const second = await snapshotOf(id)
    const key = keyed()
    const restore = (body: ArrayBuffer) => call('/v1/sessions:restore', { ...key, method: 'POST', body })
    const copy = await idOf(await restore(first))
    await abortAllDurableObjects()
    expect((await restore(second)).status).toBe(422)
    expect(await idOf(await restore(first))).toBe(copy)
  })

  test('opens a session anew where the first is gone', async () => {
    const key = keyed()
    const id = await open({ ttl: 60 }, key)
    expect((await call(`/v1/sessions/${id}`, { method: 'DELETE' })).status).toBe(204)
    expect(await statusOf(`/v1/sessions/${await open({ ttl: 60 }, key)}`)).toBe(200)
    await abortAllDurableObjects()
    await idleFor67(id)
    await runDurableObjectAlarm(stub(id))
    expect(await statusOf(`/v1/sessions/${await open({ ttl: 60 }, key)}`)).toBe(200)
    expect(await tablesOf(id)).not.toEqual([])
  })

  test('of a restore that was cut off begins with nothing of it', async () => {
    const source = await open()
    await append(source, 0, 0, rows(20))
    const body = await snapshotOf(source)
    const key = keyed()
    const restore = () => call('/v1/sessions:restore', { ...key, method: 'POST', body })
    const id = await idOf(await restore())
    await call(`/v1/sessions/${id}`, { method: 'DELETE' })
    await runInDurableObject(stub(id), (_, { storage }) => {
      new SessionLog(storage).open()
      storage.sql.exec("INSERT INTO rows (kind, layer, start, more, bytes) VALUES ('snapshot', 0, 0, 0, x'0102')")
    })
    expect((await restore()).status).toBe(201)
    await abortAllDurableObjects()
    expect(await (await call(`/v1/sessions/${id}`)).json()).toMatchObject({ lengths: [20, 0] })
  })

  test('has an id that only who has the token can tell, however it is sent', async () => {
    const key = crypto.randomUUID()
    const body = JSON.stringify(SHAPE)
    const protocol = `pariskv, pariskv.token.${base64url(new TextEncoder().encode('token-of-alice'))}`
    const headers = { 'sec-websocket-protocol': protocol, 'idempotency-key': key }
    const post = (path: string, init: RequestInit) =>
      exports.default.fetch(`https://pariskv.test${path}`, { ...init, headers, method: 'POST' })
    const id = await idOf(await post('/v1/sessions', { body }))
    const guess = new TextEncoder().encode(JSON.stringify(['/v1/sessions', 'alice', '', key]))
    expect(id).not.toBe(base64url(new Uint8Array(await crypto.subtle.digest('SHA-256', guess), 0, 16)))
    const bearer = await call('/v1/sessions', { method: 'POST', body, headers: { 'idempotency-key': key } })
    expect(await idOf(bearer)).toBe(id)
    expect((await post(`/v1/sessions/${id}/fork`, {})).status).toBe(201)
  })
})

describe('a session', () => {
  test('that has expired stays so after an eviction, with or without its alarm', async () => {
    const id = await open({ ttl: 60 })
    await abortAllDurableObjects()
    await idleFor67(id)
    expect(await statusOf(`/v1/sessions/${id}`)).toBe(404)
    expect(await tablesOf(id)).toEqual([])
  })
})

/** As if nobody had used a session for 67 seconds. */
function idleFor67(id: string): Promise<void> {
  return runInDurableObject(stub(id), (_, { storage }) => {
    storage.sql.exec('UPDATE session SET used = used - 67000')
  })
}
