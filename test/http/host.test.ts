import { Hono } from 'hono'
import { hc } from 'hono/client'
import { expect, it } from 'vitest'
import { type ErrorCode, ParisError } from '../../sdk/errors.ts'
import { createApp, type LogEntry, type ParisApp } from '../../sdk/http/app.ts'
import { STATUS, toProblem } from '../../sdk/http/problem.ts'
import { buildFrame } from '../../sdk/http/tensors.ts'
import { sequence } from '../support/sessions.ts'
import { journalWith, local, openEngine } from './served.ts'
import { Caller, expectProblem, queryTensor, rowTensors, SMALL, TOKENS } from './support.ts'

const seq = sequence(3, 60)

it('mounts anywhere, and leaves the routes beside it alone', async () => {
  const app = createApp({ engine: openEngine, auth: { tokens: TOKENS } })
  const host = new Hono()
    .get('/before', (c) => c.text('before'))
    .route('/', createApp({ engine: openEngine, auth: { tokens: TOKENS } }))
    .route('/deep/kv', app)
    .get('/after', (c) => c.text('after'))
  for (const path of ['before', 'after']) expect(await (await host.request(`/${path}`)).text()).toBe(path)
  expect((await host.request('/deep/kv/v2/health/live')).status).toBe(200)
  await expectProblem(await host.request('/deep/kv/v1/info'), 'unauthorized')
  const alice = new Caller({
    fetch: async (path, init) => host.request(`/deep/kv${path}`, init),
    close: async () => {},
  })
  const id = await alice.open()
  await alice.append(id, seq, 0, 30)
  await alice.frame(id, '0/attend', [queryTensor(seq, 29)])
  await expectProblem(await alice.send('GET', '/v1/sessions/none'), 'not_found')
  await app.dispose()
})

it('does nothing before the first request', async () => {
  let opened = 0
  const app = createApp({
    auth: 'off',
    engine: async () => {
      opened++
      return openEngine()
    },
  })
  await new Promise((resolve) => setTimeout(resolve, 5))
  expect(opened).toBe(0)
  expect((await app.request('/v2/health/live')).status).toBe(200)
  expect(opened).toBe(0)
  const first = await app.request('/ping')
  expect(first.status).toBe(204)
  await app.ready()
  expect([(await app.request('/ping')).status, (await app.request('/v2/health/ready')).status, opened]).toEqual([
    200, 200, 1,
  ])
  await app.dispose()
})

it('with auth off everybody is the same tenant', async () => {
  const app = createApp({ engine: openEngine, auth: 'off' })
  const nobody = new Caller({ fetch: async (path, init) => app.request(path, init), close: async () => {} }, null)
  const id = await nobody.open()
  await nobody.append(id, seq, 0, 3)
  expect((await app.request('/metrics')).status).toBe(200)
  await app.dispose()
})

it('drains: refuses, says so, and waits', async () => {
  let release = () => {}
  const held = new Promise<void>((resolve) => {
    release = resolve
  })
  const journal = journalWith({ appended: () => held })
  const { app, alice } = await local({ journal })
  const id = await alice.open()
  const append = alice.append(id, seq, 0, 3)
  await new Promise((resolve) => setTimeout(resolve, 10))
  let drained = false
  const draining = app.drain().then(() => {
    drained = true
  })
  expect((await app.request('/v2/health/ready')).status).toBe(503)
  expect((await app.request('/ping')).status).toBe(503)
  expect((await app.request('/v2/health/live')).status).toBe(200)
  await expectProblem(await alice.send('GET', `/v1/sessions/${id}`), 'not_ready')
  expect(drained).toBe(false)
  release()
  expect(await append).toMatchObject({ length: 3 })
  await draining
  await app.dispose()
})

it('counts in Prometheus text behind a token of its own', async () => {
  const { app, alice } = await local({ metricsToken: 'scraper' })
  const id = await alice.open({ policy: { ...SMALL.policy, auditEvery: 1 } })
  await alice.append(id, seq, 0, 60)
  for (let i = 0; i < 3; i++) await alice.frame(id, '0/attend', [queryTensor(seq, 59)])
  await alice.send('GET', '/v1/sessions/none')
  await expectProblem(await alice.send('GET', '/metrics'), 'unauthorized')
  const text = await (await new Caller(alice.served, 'scraper').send('GET', '/metrics')).text()
  const value = (line: string) =>
    Number(
      text
        .split('\n')
        .find((each) => each.startsWith(`${line} `))
        ?.split(' ')
        .at(-1),
    )
  expect(
    value('pariskv_requests_total{method="POST",route="/v1/sessions/:id/layers/:layer/attend",status="200"}'),
  ).toBe(3)
  expect(value('pariskv_requests_total{method="GET",route="/v1/sessions/:id",status="404"}')).toBe(1)
  expect(value('pariskv_request_seconds_count{method="POST",route="/v1/sessions/:id/layers/:layer/attend"}')).toBe(3)
  expect(
    value('pariskv_request_seconds_bucket{method="POST",route="/v1/sessions/:id/layers/:layer/attend",le="+Inf"}'),
  ).toBe(3)
  expect([value('pariskv_sessions'), value('pariskv_recall_audits'), value('pariskv_ready')]).toEqual([1, 3, 1])
  expect(value('pariskv_session_bytes')).toBeGreaterThan(1000)
  expect(value('pariskv_recall_mean')).toBeGreaterThan(0.3)
  expect(text).toContain('pariskv_backend_info{backend="wasm"} 1')
  expect(text).not.toContain(id)
  for (const line of text.trim().split('\n'))
    expect(line).toMatch(/^(# (HELP|TYPE) \w+ .+|\w+(\{[^{}]*\})? [-+.\deNa]+)$/)
  await app.dispose()
})

it('logs routes, not ids, and what an unexpected failure was', async () => {
  const entries: LogEntry[] = []
  const { app, alice } = await local({
    metricsToken: 'scraper',
    logger: (entry) => void entries.push(entry),
    newId: () => {
      throw new Error('no ids left')
    },
  })
  const response = await alice.send('POST', '/v1/sessions', JSON.stringify(SMALL))
  expect(await response.clone().text()).not.toContain('no ids left')
  await expectProblem(response, 'internal')
  expect(entries.at(-1)).toMatchObject({
    method: 'POST',
    route: '/v1/sessions',
    status: 500,
    tenant: 'alice',
    code: 'internal',
  })
  expect(String(entries.at(-1)?.error)).toContain('no ids left')
  // What was opened before the failure was freed again.
  const text = await (await new Caller(alice.served, 'scraper').send('GET', '/metrics')).text()
  expect(text).toMatch(/^pariskv_sessions 0$/m)
  expect(text).toMatch(/^pariskv_session_bytes 0$/m)
  await app.dispose()
})

it('answers a call as done though its log throws', async () => {
  const { app, alice } = await local({
    logger: () => {
      throw new Error('the log is full')
    },
  })
  const id = await alice.open()
  expect(await alice.append(id, seq, 0, 3)).toMatchObject({ length: 3 })
  await expectProblem(await alice.send('GET', '/v1/sessions/none'), 'not_found')
  await app.dispose()
})

it('adopts no session of another engine, and none under an id that is taken', async () => {
  const [engine, other] = [await openEngine(), await openEngine()]
  const { app, alice } = await local({ engine })
  const id = await alice.open()
  await alice.append(id, seq, 0, 3)
  const adopt = async (as: string, from: typeof engine) =>
    app.adopt(as, { tenant: 'alice', session: await from.createSession(SMALL), ttl: 60 })
  await expect(adopt('far', other)).rejects.toMatchObject({ code: 'bad_config' })
  await expect(adopt(id, engine)).rejects.toMatchObject({ code: 'internal', where: 'app.adopt(id)' })
  await expectProblem(await alice.send('GET', '/v1/sessions/far'), 'not_found')
  expect(await alice.lengths(id)).toEqual([3, 0])
  await adopt('near', engine)
  expect(await alice.lengths('near')).toEqual([0, 0])
  await app.dispose()
  await Promise.all([engine.dispose(), other.dispose()])
})

it('is typed for hono/client', async () => {
  const { app } = await local()
  const client = hc<ParisApp>('http://host', {
    fetch: (input: string | URL | Request, init?: RequestInit) => app.request(input, init),
    headers: { authorization: 'Bearer token-of-alice' },
  })
  const info = await (await client.v1.info.$get()).json()
  expect('state' in info && info.state).toBe('ready')
  await app.dispose()
})

it('has a status for every code, and a problem that says what to do', () => {
  for (const code of Object.keys(STATUS) as ErrorCode[]) {
    const problem = toProblem(new ParisError(code, { where: 'here', got: 'this', want: 'that', fix: 'Do so.' }))
    const told = code === 'disposed' ? 'not_found' : code
    expect(problem).toMatchObject({ type: `urn:pariskv:problem:${told}`, status: STATUS[code], code: told })
    expect(problem.title).toMatch(/^[A-Zk]/)
    expect(Object.values(problem)).not.toContain(undefined)
  }
  expect(toProblem(new Error('secret'))).toMatchObject({ code: 'internal', status: 500 })
  expect(JSON.stringify(toProblem(new Error('secret')))).not.toContain('secret')
})

it('says that it has no WebSockets where the host gave none', async () => {
  const { app, alice } = await local()
  const id = await alice.open()
  await expectProblem(
    await alice.send('GET', `/v1/sessions/${id}/socket`, undefined, { upgrade: 'websocket' }),
    'not_supported',
  )
  await app.dispose()
})

it('takes f16 and bf16, and keeps them as they came', async () => {
  const { app, alice } = await local()
  const id = await alice.open()
  const bits = (dtype: 'f16' | 'bf16') =>
    rowTensors(seq, 0, 2).map(({ name, shape }) => ({
      name,
      shape,
      data: { dtype, data: new Uint16Array(64).fill(0x3c00) },
    }))
  const path = (layer: number) => `/v1/sessions/${id}/layers/${layer}/kv?offset=0`
  expect((await alice.send('PUT', path(0), buildFrame(bits('f16')))).status).toBe(200)
  expect((await alice.send('PUT', path(1), buildFrame(bits('bf16')))).status).toBe(200)
  expect((await alice.json('GET', `/v1/sessions/${id}`)).store).toBe('f16')
  await app.dispose()
})
