import { expect, it } from 'vitest'
import type { Progress } from '../../sdk/calls.ts'
import { createClient, mergePartials } from '../../sdk/http/client.ts'
import { problemResponse, Refusal } from '../../sdk/http/problem.ts'
import { expectNear, expectSame } from '../support/repeat.ts'
import { bytesOf, queriesAt, refused, rows, sequence, tokensOf } from '../support/sessions.ts'
import { local, openEngine } from './served.ts'
import { SMALL } from './support.ts'

const seq = sequence(3, 300)
const prompt = (from: number, to: number) => ({
  ...rows(seq, from, to),
  queries: tokensOf(seq.queries, 300, 16, from, to),
})

type Send = (request: Request) => Promise<Response>

/** A client whose requests pass through `between`. */
async function connect(between: (request: Request, send: Send) => Promise<Response> = (r, send) => send(r), over = {}) {
  const host = await local(over)
  const requests: string[] = []
  const send: Send = async (request) => host.app.request(request)
  const client = createClient({
    url: 'http://host/',
    token: 'token-of-alice',
    backoff: 1,
    chunkBytes: 20_000,
    fetch: (request) => {
      requests.push(`${request.method} ${new URL(request.url).pathname}`)
      return between(request, send)
    },
  })
  return { ...host, client, requests }
}

it('answers as the SDK does, to the bit', async () => {
  const { app, client } = await connect()
  const engine = await openEngine()
  const [far, near] = [await client.createSession(SMALL), await engine.createSession(SMALL)]
  for (const session of [far, near]) await session.append(0, rows(seq, 0, 200))
  const queries = queriesAt(seq, 199)
  for (const call of ['attend', 'retrieve'] as const) {
    const [a, b] = [await far[call](0, { queries }), await near[call](0, { queries })]
    for (const [name, want] of Object.entries(b))
      if (typeof want !== 'number') expectSame((a as never)[name], want as Float32Array, `${call} ${name}`)
  }
  const range = { queries, from: 10, to: 150 }
  expectSame((await far.attendRange(0, range)).output, (await near.attendRange(0, range)).output, 'range')
  const [a, b] = [await far.prefill(1, prompt(0, 150)), await near.prefill(1, prompt(0, 150))]
  expect([a.output.length, far.length(1)]).toEqual([b.output.length, 150])
  expectNear(a.output, b.output, 1e-5, 'prefill')
  expectSame(await bytesOf(far.snapshot()), await bytesOf(near.snapshot()), 'snapshot')
  for (const session of [far, near]) await session.truncate(120)
  const [farFork, nearFork] = [await far.fork(), await near.fork()]
  for (const session of [farFork, nearFork]) await session.append(0, rows(seq, 120, 130))
  expectSame((await farFork.attend(0, { queries })).output, (await nearFork.attend(0, { queries })).output, 'fork')
  expect([far.length(), farFork.length()]).toEqual([120, 130])
  const restored = await client.restore(new Uint8Array(await bytesOf(far.snapshot())))
  const streamed = await client.restore(far.snapshot(), { ttl: 60 })
  expect([restored.length(0), streamed.length(1)]).toEqual([120, 120])
  expect((await client.session(far.id)).length(1)).toBe(120)
  await far.dispose()
  await far.dispose()
  await refused(client.session(far.id), 'not_found')
  await engine.dispose()
  await app.dispose()
})

it('cuts a prompt into requests below the limit, and tells how far it is', async () => {
  const { app, client, requests } = await connect(undefined, { limits: { body: 12_000 } })
  const session = await client.createSession(SMALL)
  const seen: Progress[] = []
  await session.append(0, rows(seq, 0, 300), { onProgress: (progress) => void seen.push(progress) })
  expect(requests.filter((line) => line.includes('/kv')).length).toBeGreaterThan(5)
  expect(seen.at(-1)).toEqual({ done: 300, total: 300, unit: 'tokens' })
  expect(seen.map(({ done }) => done)).toEqual([...seen.map(({ done }) => done)].sort((a, b) => a - b))
  expect((await session.stats()).lengths).toEqual([300, 0])
  await app.dispose()
})

it('sends again what an answer was lost of, and it is done once', async () => {
  let lost = 0
  const { app, client } = await connect(async (request, send) => {
    const response = await send(request)
    if (request.method !== 'GET' && lost++ % 2 === 0) throw new TypeError('connection reset')
    return response
  })
  const session = await client.createSession(SMALL)
  for (let t = 0; t < 10; t++) await session.append(0, rows(seq, t, t + 1))
  await session.step(0, prompt(10, 11))
  await session.prefill(1, prompt(0, 5))
  await session.truncate(9)
  await session.fork()
  expect((await session.stats()).lengths).toEqual([9, 5])
  await app.dispose()
})

it('waits for Retry-After, and gives up in the end', async () => {
  let left = 2
  const busy = () =>
    problemResponse(new Refusal('too_many', { where: 'w', got: 'g', want: 'w', fix: 'f' }, { retryAfter: 0.01 }))
  const { app, client, requests } = await connect(async (request, send) => (left-- > 0 ? busy() : send(request)))
  const session = await client.createSession(SMALL)
  expect(requests.length).toBe(3)
  left = 1000
  requests.length = 0
  const error = await refused(session.append(0, rows(seq, 0, 1)), 'too_many')
  expect(error.got).toBe('g')
  expect(requests.length).toBe(6)
  await app.dispose()
})

it('does not send again what was refused for good', async () => {
  const { app, client, requests } = await connect()
  const session = await client.createSession(SMALL)
  requests.length = 0
  await refused(session.retrieve(0, { queries: queriesAt(seq, 0), k: 0 }), 'bad_k')
  await refused(session.append(7, rows(seq, 0, 1)), 'bad_layer')
  expect(requests.length).toBe(2)
  // What is wrong by itself is not sent at all.
  const { keys, values } = rows(seq, 0, 2)
  await refused(session.append(0, { keys: keys.subarray(1), values }), 'bad_shape')
  await refused(session.append(0, { keys: keys.map(() => Number.NaN), values }), 'not_finite')
  await refused(session.append(0, { keys: [1] as never, values }), 'bad_dtype')
  expect(requests.length).toBe(2)
  await app.dispose()
})

it('stops when told to, and knows what was kept', async () => {
  const { app, client } = await connect(undefined, { limits: { body: 12_000 } })
  const session = await client.createSession(SMALL)
  const controller = new AbortController()
  const append = session.append(0, rows(seq, 0, 300), {
    signal: controller.signal,
    onProgress: ({ done }) => {
      if (done > 60) controller.abort()
    },
  })
  await refused(append, 'aborted')
  const kept = session.length()
  expect(kept).toBeGreaterThan(0)
  expect(kept).toBeLessThan(300)
  await session.append(0, rows(seq, kept, 300))
  expect((await session.stats()).lengths).toEqual([300, 0])
  await refused(session.attend(0, { queries: queriesAt(seq, 0) }, { signal: AbortSignal.abort() }), 'aborted')
  await app.dispose()
})

it('tells of a server that is not there, or is another', async () => {
  const nowhere = createClient({
    url: 'http://host',
    retries: 1,
    backoff: 1,
    fetch: async () => {
      throw new TypeError('refused')
    },
  })
  await refused(nowhere.info(), 'backend_unavailable')
  const other = createClient({
    url: 'http://host',
    retries: 0,
    fetch: async () => new Response('<html>', { status: 502 }),
  })
  await refused(other.info(), 'backend_unavailable')
  const wrong = await connect(async (request, send) => {
    const copy = new Request(request, { headers: { authorization: 'Bearer none' } })
    return send(copy)
  })
  await refused(wrong.client.info(), 'unauthorized')
  await wrong.app.dispose()
})

it('merges what several hosts hold of one sequence', async () => {
  const [a, b] = [await connect(), await connect()]
  const [first, second] = [await a.client.createSession(SMALL), await b.client.createSession(SMALL)]
  await first.append(0, rows(seq, 0, 170))
  await second.append(0, rows(seq, 170, 300))
  const engine = await openEngine()
  const whole = await engine.createSession(SMALL)
  await whole.append(0, rows(seq, 0, 300))
  const queries = queriesAt(seq, 299)
  const want = await whole.attendRange(0, { queries, from: 0, to: 300 })
  const got = mergePartials([
    await first.attendRange(0, { queries, from: 0, to: 170 }),
    await second.attendRange(0, { queries, from: 0, to: 130 }),
  ])
  expectNear(got.output, want.output, 1e-4, 'output')
  expectNear(got.lse, want.lse, 1e-4, 'lse')
  expect(() => mergePartials([])).toThrow(/at least one/)
  expect(() => mergePartials([want, { output: want.output, lse: want.lse.subarray(1) }])).toThrow(/bad_shape/)
  await Promise.all([a.app.dispose(), b.app.dispose(), engine.dispose()])
})
