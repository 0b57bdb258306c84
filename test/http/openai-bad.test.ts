import { afterAll, afterEach, beforeAll, expect, it, vi } from 'vitest'
import { ParisError } from '../../sdk/errors.ts'
import { createOpenAi, type OpenAi } from '../../sdk/http/openai.ts'
import type { Model } from '../../sdk/llm/index.ts'
import { badModel } from '../../sdk/llm/source.ts'
import { ask, CHAT, heldBy, openApp, openNeedle, QUESTION, TEXT, type Told, wholeOf } from './openai-support.ts'

let model: Model
let app: OpenAi
let held: ReturnType<typeof heldBy>
beforeAll(async () => {
  model = await openNeedle()
  await wholeOf(ask(openApp(model), TEXT, { prompt: QUESTION, max_tokens: 2 }))
  held = heldBy(model)
  app = openApp(model, { limits: { context: 64, body: 20_000 } })
})
afterEach(() => expect(heldBy(model)).toEqual(held))
afterAll(() => model?.engine.dispose())

/** The error of a response that must be a whole one. */
async function errorOf(response: Response | Promise<Response>, status: number): Promise<NonNullable<Told['error']>> {
  const settled = await response
  const text = await settled.text()
  expect(settled.status, text).toBe(status)
  expect(settled.headers.get('content-type')).toBe('application/json')
  const { error } = JSON.parse(text) as Required<Told>
  expect(Object.keys(error)).toEqual(['message', 'type', 'param', 'code'])
  expect(error.message.length).toBeGreaterThan(20)
  return error
}

const user = { role: 'user', content: 'the' }
const messages = [user]

it.each<[string, object, string, string]>([
  ['no messages', {}, 'messages', 'nothing'],
  ['an empty list', { messages: [] }, 'messages', ''],
  ['messages of another type', { messages: 'the' }, 'messages', '"the"'],
  ['an unknown role', { messages: [{ ...user, role: 'tool' }] }, 'messages.0.role', '"tool"'],
  ['no content', { messages: [{ role: 'user', content: null }] }, 'messages.0.content', 'null'],
  ['an image', { messages: [{ ...user, content: [{ type: 'image_url', image_url: {} }] }] }, 'messages.0.content', ''],
  ['messages that the template refuses', { messages: [{ ...user, role: 'assistant' }] }, 'messages', 'no question'],
  ['an unknown field', { messages, temprature: 1 }, 'temprature', 'a field that is known'],
  ['an unknown field within', { messages: [{ ...user, weight: 2 }] }, 'messages.0.weight', '2'],
  ['several answers', { messages, n: 2 }, 'n', '2'],
  ['tools', { messages, tools: [{ type: 'function' }] }, 'tools', 'not offered'],
  ['log probabilities', { messages, logprobs: true }, 'logprobs', 'true'],
  ['a format', { messages, response_format: { type: 'json_object' } }, 'response_format.type', 'json_object'],
  ['a penalty', { messages, frequency_penalty: 0.5 }, 'frequency_penalty', '0.5'],
  ['no token at all', { messages, max_tokens: 0 }, 'max_tokens', '0'],
  ['half a token', { messages, max_completion_tokens: 1.5 }, 'max_completion_tokens', '1.5'],
  ['a temperature beyond 2', { messages, temperature: 3 }, 'temperature', '3'],
  ['a text for a number', { messages, top_p: '1' }, 'top_p', '"1"'],
  ['an empty stop', { messages, stop: [''] }, 'stop.0', '""'],
  ['five stops', { messages, stop: ['a', 'b', 'c', 'd', 'e'] }, 'stop', 'up to four'],
  ['usage without a stream', { messages, stream_options: { include_usage: true } }, 'stream_options', 'stream: true'],
])('a chat with %s is refused by its field', async (_, fields, param, told) => {
  const error = await errorOf(ask(app, CHAT, fields), 400)
  expect(error).toMatchObject({ type: 'invalid_request_error', param })
  expect(error.message).toContain(told)
})

it.each<[string, object, string, string]>([
  ['no prompt', {}, 'prompt', 'bad_parameter'],
  ['an empty prompt', { prompt: '' }, 'prompt', 'bad_parameter'],
  ['an empty list', { prompt: [] }, 'prompt', 'bad_parameter'],
  ['several prompts', { prompt: ['the', 'a'] }, 'prompt', 'bad_parameter'],
  ['tokens that are none', { prompt: [4, -1] }, 'prompt.1', 'bad_parameter'],
  ['a token beyond the vocabulary', { prompt: [4, 512] }, 'prompt', 'bad_prompt'],
  ['a prompt beyond the context', { prompt: QUESTION.repeat(3) }, 'prompt', 'context_length_exceeded'],
  ['an answer beyond the context', { prompt: 'the', max_tokens: 63 }, 'prompt', 'context_length_exceeded'],
  ['an echo', { prompt: 'the', echo: true }, 'echo', 'bad_parameter'],
  ['a suffix', { prompt: 'the', suffix: 'end' }, 'suffix', 'bad_parameter'],
  ['the best of two', { prompt: 'the', best_of: 2 }, 'best_of', 'bad_parameter'],
  ['no model', { prompt: 'the', model: undefined }, 'model', 'bad_parameter'],
])('a text with %s is refused by its field', async (_, fields, param, code) => {
  for (const stream of [false, true])
    expect(await errorOf(ask(app, TEXT, { ...fields, stream }), 400)).toMatchObject({ param, code })
})

it('an unknown model is not found, whatever it is called', async () => {
  for (const name of ['gpt', 'constructor', '__proto__', ' needle'])
    expect(await errorOf(ask(app, TEXT, { prompt: 'the', model: name }), 404)).toMatchObject({
      param: 'model',
      code: 'model_not_found',
    })
  expect((await errorOf(app.request('/v1/models/constructor'), 404)).code).toBe('model_not_found')
  for (const path of ['/v1/embeddings', '/', '/v1/models/'])
    expect((await errorOf(app.request(path), 404)).code).toMatch(/unknown_url|model_not_found/)
  expect((await errorOf(app.request(TEXT), 404)).code).toBe('unknown_url')
})

it.each<[string, BodyInit | undefined, Record<string, string>, number, string]>([
  ['none', undefined, {}, 400, 'bad_body'],
  ['no JSON', '{"model": "needle",', {}, 400, 'bad_body'],
  ['a list', '[]', {}, 400, 'bad_body'],
  ['text that is no UTF-8', Uint8Array.of(123, 255, 125), {}, 400, 'bad_body'],
  ['a prototype', '{"__proto__": {}}', {}, 400, 'bad_body'],
  ['deep JSON', `{"model":"needle","prompt":${'['.repeat(8000)}${']'.repeat(8000)}}`, {}, 400, 'bad_'],
  ['deep notes', `{"prompt":[],"metadata":${'{"a":'.repeat(3000)}1${'}'.repeat(3000)}}`, {}, 400, 'bad_'],
  ['too many bytes', JSON.stringify({ model: 'needle', prompt: 'the '.repeat(6000) }), {}, 413, 'too_large'],
  ['a long one announced', '{}', { 'content-length': '30000' }, 413, 'too_large'],
  ['a packed one', '{}', { 'content-encoding': 'gzip' }, 415, 'unsupported_media'],
])('a body of %s is refused', async (_, body, headers, status, code) => {
  expect((await errorOf(app.request(TEXT, { method: 'POST', body, headers }), status)).code).toContain(code)
})

it('needs a key where there are keys', async () => {
  const guarded = openApp(model, { auth: { tokens: new Map([['key', 'alice']]) } })
  expect([guarded.open, app.open]).toEqual([false, true])
  for (const authorization of ['', 'Bearer', 'Bearer other', 'Basic key', 'Bearer keykey']) {
    const headers = { authorization }
    const refused = await ask(guarded, TEXT, { prompt: 'the', max_tokens: 1 }, { headers })
    expect(refused.headers.get('www-authenticate')).toBe('Bearer')
    expect(await errorOf(refused, 401)).toMatchObject({ type: 'invalid_request_error', code: 'invalid_api_key' })
    expect((await guarded.request('/v1/models', { headers })).status).toBe(401)
  }
  const headers = { authorization: 'Bearer key' }
  await wholeOf(ask(guarded, TEXT, { prompt: 'the', max_tokens: 1 }, { headers }))
})

it('refuses caches beyond its memory', async () => {
  const bytes = model.estimate({ capacity: 22 }).total
  const small = openApp(model, { limits: { bytes } })
  const refused = await ask(small, TEXT, { prompt: QUESTION, max_tokens: 4000 })
  expect(refused.headers.get('retry-after')).toBe('5')
  expect(await errorOf(refused, 503)).toMatchObject({ type: 'server_error', code: 'out_of_memory' })
  await wholeOf(ask(small, TEXT, { prompt: 'the', max_tokens: 20 }))
})

it('loads a model again after a failure or a lost device, and tells nothing of its files', async () => {
  const lost = { where: 'the device', got: 'a lost device', want: 'an open one', fix: 'Open another.' }
  const opened: Model[] = []
  const load = vi.fn(async () => {
    if (load.mock.calls.length === 1) throw badModel('/srv/secret/config.json', 'no such file', 'a file', 'Add it.')
    opened.push(await openNeedle())
    return opened.at(-1)!
  })
  const errors: unknown[] = []
  const lazy = createOpenAi({
    models: { needle: load },
    auth: 'off',
    logger: ({ error }) => error && errors.push(error),
  })
  expect(load).not.toHaveBeenCalled()
  const request = () => ask(lazy, TEXT, { prompt: 'the', max_tokens: 1 })
  const failed = await errorOf(request(), 500)
  expect(failed).toMatchObject({ type: 'server_error', code: 'internal' })
  expect(failed.message).not.toContain('secret')
  expect(errors).toEqual([expect.objectContaining({ code: 'bad_model' })])
  await Promise.all([wholeOf(request()), wholeOf(request())])
  expect(load).toHaveBeenCalledTimes(2)
  vi.spyOn(opened[0], 'createContext').mockRejectedValueOnce(new ParisError('device_lost', lost))
  expect(await errorOf(request(), 503)).toMatchObject({ type: 'server_error', code: 'device_lost' })
  await wholeOf(request())
  expect(load).toHaveBeenCalledTimes(3)
  await expect(opened[0].createContext({ capacity: 8 })).rejects.toMatchObject({ code: 'disposed' })
  await lazy.dispose()
  await expect(opened[1].engine.createSession({} as never)).rejects.toMatchObject({ code: 'disposed' })
  expect((await request()).status).toBe(503)
})
