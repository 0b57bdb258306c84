import { once } from 'node:events'
import { afterEach, expect, test } from 'vitest'
import { createEngine } from '../../adapters/node.ts'
import { serve } from '../../adapters/serve-node.ts'
import { createOpenAi } from '../../sdk/http/openai.ts'
import { startProcess } from './processes.ts'

const NEEDLE = 'examples/models/needle-9m'
const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

function startCommand(...args: string[]) {
  const command = startProcess(process.execPath, ['--import', 'tsx', 'adapters/cli.ts', 'serve', ...args])
  cleanups.push(() => command.child.kill('SIGKILL'))
  return command
}

test('pariskv serve --model serves the folder beside the sessions, with the same tokens', async () => {
  const { child, line, lines, exit } = startCommand(
    ...['--port', '0', '--device', 'wasm', '--token', 'one=a', '--model', NEEDLE],
  )
  const url = await line(/^models needle-9m under (http:\S+)\/v1$/)
  await line(/^(ready)$/)
  const call = (path: string, token: string, body?: object) =>
    fetch(url + path, {
      method: body ? 'POST' : 'GET',
      headers: { authorization: `Bearer ${token}` },
      body: body && JSON.stringify(body),
    })
  const prompt = 'the magic number of polar lantern is 6 6 8 2 . recall the magic number of polar lantern is'
  const answer = await call('/v1/completions', 'one', { model: 'needle-9m', prompt, max_tokens: 4, stop: '.' })
  expect(await answer.json()).toMatchObject({ choices: [{ text: ' 6 6 8 2', finish_reason: 'length' }] })
  for (const path of ['/v1/models', '/v1/info']) {
    expect((await call(path, 'one')).status).toBe(200)
    expect((await call(path, 'two')).status).toBe(401)
  }
  child.kill('SIGTERM')
  expect(await exit).toEqual([0, null])
  expect(lines.at(-1)).toBe('closed')
})

test.each([
  [['--model', NEEDLE, '--model', `./${NEEDLE}/`], 'two folders called "needle-9m"'],
  [['--port', '0', '--device', 'wasm', '--model', 'examples/models/none'], 'no such folder'],
])('%j ends with 1', async (args, told) => {
  const { exit, lines } = startCommand(...args)
  expect(await exit).toEqual([1, null])
  await expect.poll(() => lines.join('\n')).toContain(told)
})

test('models that anybody may call are not served beyond this machine', async () => {
  const auth = { tokens: new Map([['secret', 'a']]) }
  const openai = createOpenAi({ models: {}, auth: 'off' })
  await expect(serve({ port: 0, host: '0.0.0.0', auth, openai })).rejects.toMatchObject({ code: 'bad_config' })
})

test('sessions beside models have their WebSocket, and their own refusals', async () => {
  const openai = createOpenAi({ models: {}, auth: 'off' })
  const server = await serve({ port: 0, auth: 'off', engine: () => createEngine({ device: 'wasm' }), openai })
  cleanups.push(() => server.close())
  await server.app.ready()
  const shape = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: 8, capacity: 8 }
  const created = await fetch(`${server.url}/v1/sessions`, { method: 'POST', body: JSON.stringify(shape) })
  const { id } = (await created.json()) as { id: string }
  const socket = new WebSocket(`${server.url.replace('http', 'ws')}/v1/sessions/${id}/socket`, ['pariskv'])
  await once(socket as never, 'open')
  socket.close()
  const unknown = await fetch(`${server.url}/v1/nothing`)
  expect([unknown.status, unknown.headers.get('content-type')]).toEqual([404, 'application/problem+json'])
  expect(await (await fetch(`${server.url}/v1/models`)).json()).toEqual({ object: 'list', data: [] })
})

test('requests of models count in the metrics beside those of sessions, each once', async () => {
  const openai = createOpenAi({ models: {}, auth: 'off' })
  const server = await serve({ port: 0, auth: 'off', engine: () => createEngine({ device: 'wasm' }), openai })
  cleanups.push(() => server.close())
  await server.app.ready()
  const call = (path: string, init?: RequestInit) => fetch(server.url + path, init)
  const body = JSON.stringify({ model: 'none', prompt: 'a' })
  const answers = [
    await call('/v1/models'),
    await call('/v1/models'),
    await call('/v1/models/none'),
    await call('/v1/completions', { method: 'POST', body }),
    await call('/v1/completions'),
    await call('/v1/info'),
  ]
  expect(answers.map(({ status }) => status)).toEqual([200, 200, 404, 404, 404, 200])
  expect(await answers[4].json()).toMatchObject({ error: { code: 'unknown_url' } })
  const text = await (await call('/metrics')).text()
  const counted = text.split('\n').filter((line) => line.startsWith('pariskv_requests_total'))
  const labels = (method: string, route: string, status: number) =>
    `pariskv_requests_total{method="${method}",route="${route}",status="${status}"}`
  expect(counted.sort()).toEqual(
    [
      `${labels('GET', '/v1/models', 200)} 2`,
      `${labels('GET', '/v1/models/:model{.+}', 404)} 1`,
      `${labels('POST', '/v1/completions', 404)} 1`,
      `${labels('GET', '/v1/completions', 404)} 1`,
      `${labels('GET', '/v1/info', 200)} 1`,
    ].sort(),
  )
  expect(text).toMatch(/^pariskv_request_seconds_count\{method="GET",route="\/v1\/models"\} 2$/m)
  expect(text).toMatch(/^pariskv_requests_in_flight 0$/m)
})
