import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { createEngine } from '../../adapters/node.ts'
import { serve } from '../../adapters/serve-node.ts'
import type { OpenAi } from '../../sdk/http/openai.ts'
import type { Model } from '../../sdk/llm/index.ts'
import {
  ask,
  chunksOf,
  ENDLESS,
  eventsOf,
  heldBy,
  openApp,
  openNeedle,
  QUESTION,
  TEXT,
  type Told,
  wholeOf,
} from './openai-support.ts'

let model: Model
let app: OpenAi
let held: ReturnType<typeof heldBy>
beforeAll(async () => {
  model = await openNeedle()
  // What the model keeps for itself grows with the first request.
  await wholeOf(ask(openApp(model), TEXT, { prompt: QUESTION, max_tokens: 3 }))
  held = heldBy(model)
  expect(held.sessions).toBe(0)
})
beforeEach(() => {
  app = openApp(model, { limits: { active: 1, queue: 1 } })
})
afterAll(() => model?.engine.dispose())

/** Every cache is gone, to the byte. */
const freed = () => expect.poll(() => heldBy(model), { timeout: 20_000 }).toEqual(held)
/** Somebody generates. */
const begun = () => expect.poll(() => heldBy(model).sessions, { timeout: 20_000 }).toBe(1)

/** An endless stream of which some events have come. */
async function openStream(of = app, events = 3) {
  const response = await ask(of, TEXT, ENDLESS)
  expect(response.status).toBe(200)
  const reader = response.body!.getReader()
  for (let n = 0; n < events; n++) expect((await reader.read()).done).toBe(false)
  expect(heldBy(model).sessions).toBe(1)
  expect(heldBy(model).bytes).toBeGreaterThan(held.bytes)
  return reader
}

it('a stream that is closed ends its answer and frees the cache', async () => {
  const reader = await openStream()
  await reader.cancel()
  await freed()
  await app.drain()
})

it('a client that leaves before its whole answer frees the cache', async () => {
  const abort = new AbortController()
  const answer = ask(app, TEXT, { ...ENDLESS, stream: false }, { signal: abort.signal })
  await begun()
  abort.abort()
  expect((await answer).status).toBe(499)
  await freed()
})

it('a client that leaves while its prompt goes through frees the cache', async () => {
  const abort = new AbortController()
  const prompt = Array.from({ length: 40 }, () => QUESTION).join(' ')
  const answer = ask(app, TEXT, { ...ENDLESS, prompt, stream: false }, { signal: abort.signal })
  await begun()
  abort.abort()
  expect((await answer).status).toBe(499)
  await expect.poll(() => heldBy(model).sessions, { timeout: 20_000 }).toBe(0)
  held = heldBy(model)
})

it('over a socket, either way', async () => {
  const engine = () => createEngine({ device: 'wasm' })
  const server = await serve({ port: 0, auth: 'off', engine, openai: app })
  try {
    await server.app.ready()
    expect((await fetch(`${server.url}/v1/info`)).status).toBe(200)
    expect(await (await fetch(`${server.url}/v1/models`)).json()).toMatchObject({ data: [{ id: 'needle' }] })
    const post = (fields: object, signal?: AbortSignal) =>
      fetch(server.url + TEXT, { method: 'POST', body: JSON.stringify({ model: 'needle', ...fields }), signal })
    for (const stream of [true, false]) {
      const abort = new AbortController()
      const answer = post({ ...ENDLESS, stream }, abort.signal)
      if (stream) {
        const reader = (await answer).body!.getReader()
        expect(new TextDecoder().decode((await reader.read()).value)).toMatch(/^data: \{"id":"cmpl-/)
      }
      await begun()
      abort.abort()
      if (!stream) await expect(answer).rejects.toThrow(/abort/)
      await freed()
    }
    expect((await chunksOf(post({ prompt: QUESTION, max_tokens: 2, stream: true }))).length).toBe(3)
  } finally {
    await server.close()
  }
  await freed()
})

it('beyond what runs and waits it is 429, and those that wait get their turn', async () => {
  const first = await openStream()
  const second = wholeOf(ask(app, TEXT, { prompt: QUESTION, max_tokens: 3 }))
  const third = await ask(app, TEXT, { prompt: QUESTION, max_tokens: 3 })
  expect([third.status, third.headers.get('retry-after')]).toEqual([429, '1'])
  expect(await third.json()).toMatchObject({ error: { type: 'requests', code: 'rate_limit_exceeded', param: null } })
  expect(heldBy(model).sessions).toBe(1)
  await first.cancel()
  expect((await second).choices[0].text).toBe(' 6 6 8')
  await freed()
})

it('who leaves while it waits leaves its place', async () => {
  const first = await openStream()
  const abort = new AbortController()
  const second = ask(app, TEXT, { prompt: QUESTION, max_tokens: 3 }, { signal: abort.signal })
  abort.abort()
  expect((await second).status).toBe(499)
  const third = wholeOf(ask(app, TEXT, { prompt: QUESTION, max_tokens: 3 }))
  await first.cancel()
  expect((await third).choices[0].text).toBe(' 6 6 8')
  await freed()
})

it('a stream beyond its deadline ends with an error, whoever reads it or not', async () => {
  const hasty = openApp(model, { limits: { deadline: 4_000 } })
  const events = await eventsOf(ask(hasty, TEXT, ENDLESS))
  expect(events.length).toBeGreaterThan(3)
  expect((events.at(-1) as Told).error).toMatchObject({ type: 'server_error', code: 'deadline' })
  await freed()
  const reader = await openStream(hasty)
  await freed()
  let last = ''
  for (let part = await reader.read(); !part.done; part = await reader.read())
    last = new TextDecoder().decode(part.value)
  expect(last).toContain('"code":"deadline"')
})

it('drains, and ends what is under way when it is disposed of', async () => {
  const reader = await openStream()
  const drained = app.drain()
  const refused = await ask(app, TEXT, { prompt: QUESTION })
  expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, '1'])
  await app.dispose()
  await drained
  await freed()
  let rest = ''
  for (let part = await reader.read(); !part.done; part = await reader.read())
    rest += new TextDecoder().decode(part.value)
  expect(rest).toContain('"code":"not_ready"')
  // The model was handed in loaded: it is still the caller's.
  await wholeOf(ask(openApp(model), TEXT, { prompt: QUESTION, max_tokens: 1 }))
})
