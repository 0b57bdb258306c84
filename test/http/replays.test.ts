import { expect, it } from 'vitest'
import { createClient } from '../../sdk/http/client.ts'
import { buildFrame } from '../../sdk/http/tensors.ts'
import { expectSame } from '../support/repeat.ts'
import { rows, sequence, tokensOf } from '../support/sessions.ts'
import { journalWith, local } from './served.ts'
import { Caller, expectProblem, queryTensor, rowTensors, SMALL } from './support.ts'

const seq = sequence(3, 100)
const row = (t: number) => buildFrame(rowTensors(seq, t, t + 1))
const keyed = (key: string) => ({ 'idempotency-key': key })
const queries = (to: number) => tokensOf(seq.queries, 100, 16, 0, to)

/** An app, and openings under the key `same`. */
async function openings() {
  const host = await local({ metricsToken: 'scraper' })
  const { alice } = host
  const origin = await alice.open()
  await alice.append(origin, seq, 0, 30)
  const snapshot = await (await alice.send('GET', `/v1/sessions/${origin}/snapshot`)).arrayBuffer()
  const open = async (path: string, body?: BodyInit) => {
    const response = await alice.send('POST', path, body, keyed('same'))
    const { id } = (await response.json()) as { id: string }
    return { status: response.status, id, replayed: response.headers.get('idempotent-replayed') }
  }
  return { ...host, origin, snapshot, open }
}

it.each(['create', 'fork', 'restore'] as const)('a %s is answered again while its session is there', async (kind) => {
  const { app, alice, origin, snapshot, open } = await openings()
  const request = {
    create: ['/v1/sessions', JSON.stringify(SMALL)],
    fork: [`/v1/sessions/${origin}/fork`],
    restore: ['/v1/sessions:restore?ttl=60', snapshot],
  }[kind] as [string, BodyInit]
  const first = await open(...request)
  expect(first).toMatchObject({ status: 201, replayed: null })
  expect(await open(...request)).toEqual({ ...first, replayed: 'true' })
  expect((await alice.send('DELETE', `/v1/sessions/${first.id}`)).status).toBe(204)
  const second = await open(...request)
  expect(second).toMatchObject({ status: 201, replayed: null })
  expect((await alice.send('GET', `/v1/sessions/${second.id}`)).status).toBe(200)
  expect(await open(...request)).toEqual({ ...second, replayed: 'true' })
  await app.dispose()
})

it('another snapshot under the key of one is refused, and read no further', async () => {
  const { app, alice, origin, snapshot, open } = await openings()
  expect((await open('/v1/sessions:restore', snapshot)).status).toBe(201)
  await alice.append(origin, seq, 30, 31)
  const other = new Uint8Array(await (await alice.send('GET', `/v1/sessions/${origin}/snapshot`)).arrayBuffer())
  let cancelled = false
  const stream = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(other.subarray(0, other.length - 8)),
    cancel: () => {
      cancelled = true
    },
  })
  const refused = await alice.send('POST', '/v1/sessions:restore', stream, keyed('same'))
  await expectProblem(refused, 'idempotency_mismatch')
  expect(cancelled).toBe(true)
  await app.dispose()
})

it('the client sends a restore of bytes again, and it is done once', async () => {
  const { app, alice, snapshot } = await openings()
  let lost = 0
  const client = createClient({
    url: 'http://host',
    token: 'token-of-alice',
    backoff: 1,
    fetch: async (request) => {
      const response = await app.request(request)
      if (lost++ % 2 === 0) throw new TypeError('connection reset')
      return response
    },
  })
  const restored = await client.restore(new Uint8Array(snapshot))
  expect(restored.length()).toBe(30)
  const text = await (await new Caller(alice.served, 'scraper').send('GET', '/metrics')).text()
  // That of the snapshot, and the one.
  expect(text).toMatch(/^pariskv_sessions 2$/m)
  expect(lost).toBe(2)
  await app.dispose()
})

it('an answer above the bound is not kept, and drives out none that is', async () => {
  const { app, alice } = await local({ limits: { replayBytes: 2000 } })
  const id = await alice.open()
  const put = () => alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=0`, row(0), keyed('small'))
  const large = buildFrame([...rowTensors(seq, 0, 40), { name: 'queries', shape: [4, 40, 16], data: queries(40) }])
  const prefill = () => alice.send('POST', `/v1/sessions/${id}/layers/1/prefill?offset=0`, large, keyed('large'))
  expect([(await put()).status, (await prefill()).status]).toEqual([200, 200])
  expect((await put()).headers.get('idempotent-replayed')).toBe('true')
  await expectProblem(await prefill(), 'offset_mismatch')
  await app.dispose()
})

it('the client asks for no more of a prefill than is kept for a retry', async () => {
  const { app } = await local({ limits: { replayBytes: 8192 } })
  let lost = 0
  const client = createClient({
    url: 'http://host',
    token: 'token-of-alice',
    backoff: 1,
    fetch: async (request) => {
      const response = await app.request(request)
      if (request.method === 'POST' && lost++ % 2 === 0) throw new TypeError('connection reset')
      return response
    },
  })
  const [one, two] = [await client.createSession(SMALL), await client.createSession(SMALL)]
  const input = (to: number) => ({ ...rows(seq, 0, to), queries: queries(to) })
  const whole = await one.prefill(0, input(60))
  expect(one.length()).toBe(60)
  // What is cut is put together again.
  const start = await two.prefill(0, input(10))
  for (let head = 0; head < 4; head++)
    expectSame(
      whole.output.subarray(head * 60 * 16, (head * 60 + 10) * 16),
      start.output.subarray(head * 160, (head + 1) * 160),
      `head ${head}`,
    )
  await app.dispose()
})

it('the answers of all sessions are bounded together, and go with their sessions', async () => {
  const { app, alice } = await local({ limits: { replayBytesInAll: 3000 }, metricsToken: 'scraper' })
  const kept = async () => {
    const text = await (await new Caller(alice.served, 'scraper').send('GET', '/metrics')).text()
    return Number(/^pariskv_replay_bytes (\d+)$/m.exec(text)?.[1])
  }
  const ids = [await alice.open(), await alice.open()]
  const step = (id: string, t: number) => {
    const body = buildFrame([...rowTensors(seq, t, t + 1), queryTensor(seq, t)])
    return alice.send('POST', `/v1/sessions/${id}/layers/0/step?offset=${t}`, body, keyed(`key-${t}`))
  }
  for (let t = 0; t < 5; t++) for (const id of ids) expect((await step(id, t)).status).toBe(200)
  expect(await kept()).toBeGreaterThan(1000)
  expect(await kept()).toBeLessThanOrEqual(3000)
  // The latest are there, the oldest are not.
  for (const id of ids) {
    expect((await step(id, 4)).headers.get('idempotent-replayed')).toBe('true')
    await expectProblem(await step(id, 0), 'offset_mismatch')
  }
  for (const id of ids) await alice.send('DELETE', `/v1/sessions/${id}`)
  expect(await kept()).toBe(0)
  await app.dispose()
})

it('a retry does not wait for the first request beyond its own deadline', async () => {
  let release = () => {}
  const held = new Promise<void>((resolve) => {
    release = resolve
  })
  const { app, alice } = await local({ journal: journalWith({ appended: () => held }), limits: { deadline: 60 } })
  const id = await alice.open()
  const put = () => alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=0`, row(0), keyed('same'))
  const first = put()
  await new Promise((resolve) => setTimeout(resolve, 10))
  await expectProblem(await put(), 'deadline')
  release()
  expect((await first).status).toBe(200)
  expect((await put()).headers.get('idempotent-replayed')).toBe('true')
  await app.dispose()
})
