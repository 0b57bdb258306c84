import { abortAllDurableObjects } from 'cloudflare:test'
import { env } from 'cloudflare:workers'
import { describe, expect, test } from 'vitest'
import { frontOf } from '../../../adapters/workers-front.ts'
import worker from '../../../adapters/workers-handler.ts'
import { ObjectEngine } from '../../../adapters/workers-isolate.ts'
import { base64url } from '../../../sdk/http/ids.ts'
import { createReferenceBackend } from '../../../sdk/index.ts'
import { append, call, open, rows, SHAPE, statusOf, tablesOf } from './support.ts'

const MIB = 2 ** 20
/** Of 42 MiB. */
const LARGE = { layers: 4, queryHeads: 8, kvHeads: 8, headDim: 128, capacity: 1200, store: 'f32' } as const

describe('the Worker', () => {
  test('goes by the path as the router reads it', async () => {
    const opened = await call('/v1/%73essions', { method: 'POST', body: JSON.stringify(SHAPE) })
    expect(opened.status).toBe(201)
    const { id } = (await opened.json()) as { id: string }
    expect(await tablesOf(id)).not.toEqual([])
    await abortAllDurableObjects()
    expect(await statusOf(`/v1/sessions/%${id.charCodeAt(0).toString(16)}${id.slice(1)}`)).toBe(200)
  })

  test('cannot open a session outside of an object', async () => {
    const id = await open()
    await append(id, 0, 0, rows(3))
    const snapshot = await (await call(`/v1/sessions/${id}/snapshot`)).arrayBuffer()
    const { app } = frontOf(env)
    await app.ready()
    const headers = { authorization: 'Bearer token-of-alice' }
    for (const [path, body, status] of [
      ['/v1/sessions', JSON.stringify(SHAPE), 503],
      ['/v1/sessions:restore', snapshot, 501],
    ] as const)
      expect((await app.request(path, { method: 'POST', body, headers })).status).toBe(status)
  })

  test('tells of tokens that are none as a failure of its own', async () => {
    const answer = await worker.fetch(new Request('https://pariskv.test/v1/info'), { ...env, PARISKV_TOKENS: 'a,a' })
    expect([answer.status, await answer.json()]).toMatchObject([500, { where: 'PARISKV_TOKENS: token 2' }])
  })

  test('never answers a socket with the token', async () => {
    const id = await open()
    const token = `pariskv.token.${base64url(new TextEncoder().encode('token-of-alice'))}`
    for (const [offered, answered] of [
      [`${token}, pariskv`, 'pariskv'],
      [token, null],
    ] as const) {
      const headers = { upgrade: 'websocket', 'sec-websocket-protocol': offered }
      const upgraded = await call(`/v1/sessions/${id}/socket`, { headers })
      expect([upgraded.status, upgraded.headers.get('sec-websocket-protocol')]).toEqual([101, answered])
      const { webSocket } = upgraded as unknown as { webSocket: WebSocket & { accept(): void } }
      webSocket.accept()
      webSocket.close()
    }
  })
})

describe('a refusal', () => {
  test('of a body that never ends does not wait for its end', async () => {
    const body = endless(new Uint8Array(100))
    const path = '/v1/sessions/AAAAAAAAAAAAAAAAAAAAAA/layers/0/kv?offset=0'
    expect((await call(path, { method: 'PUT', body, duplex: 'half' } as RequestInit)).status).toBe(404)
  })

  test('of a snapshot behind its header reads on, and cuts off what never ends', async () => {
    const id = await open()
    const head = new Uint8Array(await (await call(`/v1/sessions/${id}/snapshot`)).arrayBuffer())
    const text = new TextDecoder().decode(head).replace('\\"capacity\\":512', '\\"capacity\\":2000000')
    const size = new DataView(head.buffer).getUint32(0, true) + text.length - head.length
    const header = new TextEncoder().encode(text).subarray(0, 8 + size)
    new DataView(header.buffer).setUint32(0, size, true)
    const whole = counted(header, 16)
    for (const body of [whole.body, endless(header)]) {
      const refused = await call('/v1/sessions:restore', { method: 'POST', body, duplex: 'half' } as RequestInit)
      expect([refused.status, await refused.json()]).toMatchObject([507, { code: 'out_of_memory' }])
    }
    expect(whole.sent()).toBe(16)
  })
})

describe('objects in one isolate', () => {
  test('share its memory: a session is refused that would go beyond it, and loaded only within it', async () => {
    const other = new ObjectEngine(createReferenceBackend(), 'another', 72 * MIB)
    const id = await open(LARGE)
    const create = () => call('/v1/sessions', { method: 'POST', body: JSON.stringify(LARGE) })
    const refused = await create()
    expect([refused.status, await refused.json()]).toMatchObject([507, { where: 'the isolate' }])
    await abortAllDurableObjects()
    // In place of the one that was evicted, which may not be collected yet.
    new ObjectEngine(createReferenceBackend(), (env.SESSIONS.idFromName(id) as object).toString(), 72 * MIB)
    const { store: _, ...options } = LARGE
    await other.createSession(options)
    expect(await statusOf(`/v1/sessions/${id}`)).toBe(507)
    other.release()
    expect(await statusOf(`/v1/sessions/${id}`)).toBe(200)
    expect((await create()).status).toBe(507)
    expect((await call(`/v1/sessions/${id}`, { method: 'DELETE' })).status).toBe(204)
    const again = await create()
    expect(again.status).toBe(201)
    await call(`/v1/sessions/${((await again.json()) as { id: string }).id}`, { method: 'DELETE' })
    await other.dispose()
  })
})

/** A body of a head and so many chunks of 256 KiB, and how many of them have been asked for. */
function counted(head: Uint8Array, chunks: number) {
  let sent = 0
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(head),
    pull(controller) {
      if (sent === chunks) return controller.close()
      sent++
      controller.enqueue(new Uint8Array(MIB / 4))
    },
  })
  return { body, sent: () => sent }
}

/** A body whose end never comes. */
function endless(bytes: Uint8Array): ReadableStream<Uint8Array> {
  return new ReadableStream({ start: (controller) => controller.enqueue(bytes) })
}
