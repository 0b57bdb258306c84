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
