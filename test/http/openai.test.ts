import { Hono } from 'hono'
import { afterAll, beforeAll, expect, it, vi } from 'vitest'
import type { OpenAi } from '../../sdk/http/openai.ts'
import type { Model } from '../../sdk/llm/index.ts'
import { goldenOf, needlePath } from '../llm/models.ts'
import { ANSWER, ask, CHAT, chunksOf, openApp, openNeedle, QUESTION, TEXT, wholeOf } from './openai-support.ts'

const GOLDEN = goldenOf<{ prompt: string; prompt_ids: number[]; greedy_text: string }>(needlePath)
let model: Model
let app: OpenAi
beforeAll(async () => {
  model = await openNeedle()
  app = openApp(model)
})
afterAll(() => model?.engine.dispose())

it('completes a text as the model does, given as text or as tokens', async () => {
  const text = GOLDEN.prompt.replace('<bos> ', '')
  for (const prompt of [text, GOLDEN.prompt_ids]) {
    const told = await wholeOf(ask(app, TEXT, { prompt, max_tokens: 8 }))
    expect(told).toEqual({
      id: expect.stringMatching(/^cmpl-[\w-]{22}$/),
      object: 'text_completion',
      created: expect.any(Number),
      model: 'needle',
      system_fingerprint: 'pariskv-wasm',
      choices: [{ index: 0, text: ` ${GOLDEN.greedy_text}`, logprobs: null, finish_reason: 'length' }],
      usage: { prompt_tokens: 596, completion_tokens: 8, total_tokens: 604 },
    })
  }
  const unsaid = await wholeOf(ask(app, TEXT, { prompt: [QUESTION], ignore_eos: true }))
  expect(unsaid.usage?.completion_tokens).toBe(16)
})

it('answers a chat', async () => {
  const messages = [
    { role: 'developer', content: 'the calm otter is near the garden .' },
    {
      role: 'user',
      content: [
        { type: 'text', text: QUESTION.slice(0, 60) },
        { type: 'text', text: QUESTION.slice(60) },
      ],
    },
  ]
  const told = await wholeOf(ask(app, CHAT, { messages, max_completion_tokens: 5, user: 'a', n: 1, tools: null }))
  expect(told).toMatchObject({ object: 'chat.completion', usage: { completion_tokens: 5 } })
  expect(told.id).toMatch(/^chatcmpl-/)
  expect(told.choices).toEqual([
    {
      index: 0,
      message: { role: 'assistant', content: ` ${ANSWER}`, refusal: null },
      logprobs: null,
      finish_reason: 'length',
    },
  ])
})

it('streams a chat, chunk by chunk', async () => {
  const fields = { messages: [{ role: 'user', content: QUESTION }], max_tokens: 5, stream: true }
  const response = await ask(app, CHAT, fields)
  expect(response.headers.get('content-type')).toBe('text/event-stream')
  const chunks = await chunksOf(response)
  expect(new Set(chunks.map(({ id, object }) => `${id} ${object}`)).size).toBe(1)
  expect(chunks[0].object).toBe('chat.completion.chunk')
  expect(chunks.map(({ choices }) => choices[0].delta)).toEqual([
    { role: 'assistant', content: '' },
    ...[' 6', ' 6', ' 8', ' 2', ' .'].map((content) => ({ content })),
    {},
  ])
  expect(chunks.map(({ choices }) => choices[0].finish_reason)).toEqual([...Array(6).fill(null), 'length'])
  expect(chunks.some((chunk) => 'usage' in chunk)).toBe(false)
})

it('streams what it completes, and tells the usage where asked', async () => {
  const fields = { prompt: QUESTION, max_tokens: 20, temperature: 0.7, top_p: 0.9, top_k: 50, seed: -7 }
  const whole = await wholeOf(ask(app, TEXT, fields))
  const chunks = await chunksOf(ask(app, TEXT, { ...fields, stream: true, stream_options: { include_usage: true } }))
  const last = chunks.pop()
  expect(last?.choices).toEqual([])
  expect(last?.usage).toEqual(whole.usage)
  expect(chunks.every(({ usage }) => usage === null)).toBe(true)
  expect(chunks.map(({ choices }) => choices[0].text).join('')).toBe(whole.choices[0].text)
  expect(chunks.at(-1)?.choices[0].finish_reason).toBe(whole.choices[0].finish_reason)
})

it.each([
  ['a text', ' 8', ' 6 6', 3],
  ['the first of several', ['nothing', ' 2 .', ' .'], ' 6 6 8', 5],
])('stops at %s', async (_, stop, text, tokens) => {
  const whole = await wholeOf(ask(app, TEXT, { prompt: QUESTION, max_tokens: 30, stop }))
  expect(whole.choices[0]).toMatchObject({ text, finish_reason: 'stop' })
  expect(whole.usage?.completion_tokens).toBe(tokens)
  const chunks = await chunksOf(ask(app, TEXT, { prompt: QUESTION, max_tokens: 30, stop, stream: true }))
  expect(chunks.map(({ choices }) => choices[0].text).join('')).toBe(text)
  expect(chunks.at(-1)?.choices[0].finish_reason).toBe('stop')
})

it('draws the same text for a seed, and another one without', async () => {
  const text = async (fields: object) => {
    const base = { prompt: QUESTION, max_tokens: 24, temperature: 2, ignore_eos: true }
    return (await wholeOf(ask(app, TEXT, { ...base, ...fields }))).choices[0].text
  }
  const seeded = await text({ seed: 5 })
  expect(await text({ seed: 5 })).toBe(seeded)
  expect(await text({ seed: 6 })).not.toBe(seeded)
  expect(await text({})).not.toBe(await text({}))
  expect(await text({ top_p: 0 })).toBe(await text({ temperature: 0 }))
})

it('answers many at once as it answers each alone', async () => {
  const policy = { k: 8, sink: 4, local: 16, update: 8, denseBelow: 0 }
  const retrieving = openApp(model, { policy, limits: { active: 3 } })

  const text = GOLDEN.prompt.replace('<bos> ', '')
  const all = [QUESTION, text, 'copy : 1 2 3 4 5 6 7 8 =', text.split(' ').slice(0, 150).join(' ')]
  const answer = async (prompt: string) =>
    (await wholeOf(ask(retrieving, TEXT, { prompt, max_tokens: 12, ignore_eos: true }))).choices[0].text
  const alone: unknown[] = []
  for (const prompt of all) alone.push(await answer(prompt))
  expect(await Promise.all(all.map(answer))).toEqual(alone)
})

it('opens caches that search as it was told', async () => {
  const opened = vi.spyOn(model, 'createContext')
  await wholeOf(ask(openApp(model, { attention: 'full' }), TEXT, { prompt: QUESTION, max_tokens: 2 }))
  expect(opened).toHaveBeenCalledWith({ capacity: 31, attention: 'full', policy: undefined }, expect.anything())
  opened.mockRestore()
})

it('lists its models', async () => {
  const several = openApp(model, { models: { needle: model, 'of/a folder': async () => model } })
  const data = ['needle', 'of/a folder'].map((id) => ({
    id,
    object: 'model',
    created: expect.any(Number),
    owned_by: 'pariskv',
  }))
  expect(await (await several.request('/v1/models')).json()).toEqual({ object: 'list', data })
  expect(await (await several.request('/v1/models/of/a%20folder')).json()).toEqual(data[1])
  expect((await several.request('/v1/models/other')).status).toBe(404)
})

it('works below a path of another app, and tells each answer', async () => {
  const entries: { route: string; status: number; code?: string; tenant?: string }[] = []
  const auth = { tokens: new Map([['key', 'alice']]) }
  const mounted = new Hono().route(
    '/llm',
    openApp(model, {
      auth,
      logger: ({ route, status, code, tenant }) => entries.push({ route, status, code, tenant }),
    }),
  )
  const post = (fields: object, key: string) =>
    mounted.request(`/llm${CHAT}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}` },
      body: JSON.stringify({ model: 'needle', messages: [{ role: 'user', content: QUESTION }], ...fields }),
    })
  expect((await wholeOf(post({ max_tokens: 5 }, 'key'))).choices[0].message?.content).toBe(` ${ANSWER}`)
  expect((await post({ max_tokens: 0 }, 'key')).status).toBe(400)
  expect((await post({}, 'other')).status).toBe(401)
  const route = `/llm${CHAT}`
  expect(entries).toEqual([
    { route, status: 200, code: undefined, tenant: 'alice' },
    { route, status: 400, code: 'bad_parameter', tenant: 'alice' },
    { route, status: 401, code: 'unauthorized', tenant: undefined },
  ])
})
