import { once } from 'node:events'
import { connect } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { serveCommand } from '../../adapters/cli-serve.ts'
import { createEngine } from '../../adapters/node.ts'
import { type NodeServeOptions, serve } from '../../adapters/serve-node.ts'
import { buildFrame, parseFrame } from '../../sdk/http/tensors.ts'
import { startProcess } from './processes.ts'

const SHAPE = { layers: 2, queryHeads: 2, kvHeads: 1, headDim: 8, capacity: 64 }
const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

async function start(options: Partial<NodeServeOptions> = {}) {
  const engine = () => createEngine({ device: 'wasm' })
  const server = await serve({ port: 0, auth: 'off', engine, grace: 5_000, ...options })
  cleanups.push(() => server.close())
  await server.app.ready()
  return server
}

async function openSession(url: string): Promise<string> {
  const response = await fetch(`${url}/v1/sessions`, { method: 'POST', body: JSON.stringify(SHAPE) })
  expect(response.status).toBe(201)
  return ((await response.json()) as { id: string }).id
}

/** Of a GET with these headers to the letter. */
async function statusOf(url: string, headers: string, path = '/v1/info'): Promise<number> {
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  cleanups.push(() => socket.destroy())
  const end = headers.includes('Upgrade') ? '' : 'Connection: close\r\n'
  socket.write(`GET ${path} HTTP/1.1\r\n${headers}\r\n${end}\r\n`)
  const [answer] = (await once(socket, 'data')) as [Buffer]
  socket.destroy()
  return Number(/^HTTP\/1\.1 (\d+) /.exec(answer.toString('latin1'))?.[1])
}

const row = (length: number) => Float32Array.from({ length }, (_, i) => Math.sin(i + 1))
/** The frame of a step of one token. @param metadata for a socket */
const stepFrame = (metadata: Record<string, string> = {}) =>
  buildFrame(
    [
      { name: 'keys', shape: [1, 1, 8], data: row(8) },
      { name: 'values', shape: [1, 1, 8], data: row(8) },
      { name: 'queries', shape: [2, 8], data: row(16) },
    ],
    metadata,
  )

describe('serving on Node', () => {
  test('listens beyond this machine only with tokens', async () => {
    for (const host of ['0.0.0.0', '::', '192.168.0.1', 'example.com'])
      await expect(serve({ port: 0, auth: 'off', host })).rejects.toMatchObject({ code: 'bad_config' })
    const open = await start({ host: '0.0.0.0', auth: { tokens: new Map([['secret', 'a']]) } })
    const url = open.url.replace('0.0.0.0', '127.0.0.1')
    expect((await fetch(`${url}/v1/info`)).status).toBe(401)
    expect((await fetch(`${url}/v1/info`, { headers: { authorization: 'Bearer secret' } })).status).toBe(200)
  })

  test('without tokens answers no page of another name, nor one that found this machine by a name of its own', async () => {
    const { url } = await start()
    const { host, port } = new URL(url)
    const page = `http://${host}`
    for (const [headers, status] of [
      [`Host: ${host}`, 200],
      [`Host: localhost:${port}`, 200],
      [`Host: [::1]:${port}\r\nOrigin: http://[::1]:${port}`, 200],
      [`Host: ${host}\r\nOrigin: ${page}`, 200],
      [`Host: rebound.example:${port}`, 401],
      [`Host: rebound.example:${port}\r\nOrigin: http://rebound.example:${port}`, 401],
      [`Host: 127.0.0.1.example`, 401],
      [`Host: ${host}\r\nOrigin: https://page.example`, 401],
      [`Host: ${host}\r\nOrigin: http://localhost:1`, 401],
      [`Host: ${host}\r\nOrigin: null`, 401],
    ] as const)
      expect([headers, await statusOf(url, headers)]).toEqual([headers, status])
    const id = await openSession(url)
    const upgrade = 'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13'
    const path = `/v1/sessions/${id}/socket`
    for (const [origin, status] of [
      [page, 101],
      ['https://page.example', 401],
    ] as const) {
      const key = `Sec-WebSocket-Key: ${Buffer.alloc(16).toString('base64')}`
      expect(await statusOf(url, `Host: ${host}\r\nOrigin: ${origin}\r\n${upgrade}\r\n${key}`, path)).toBe(status)
    }
    const open = await start({ auth: { tokens: new Map([['secret', 'a']]) } })
    const token = 'Authorization: Bearer secret\r\nHost: pariskv.example\r\nOrigin: https://page.example'
    expect(await statusOf(open.url, token)).toBe(200)
  })

  test('refuses a port that is taken', async () => {
    const { url } = await start()
    await expect(start({ port: Number(new URL(url).port) })).rejects.toMatchObject({ code: 'EADDRINUSE' })
  })

  test('steps over a WebSocket as over HTTP', async () => {
    const { url } = await start()
    const [first, second] = [await openSession(url), await openSession(url)]
    const body = stepFrame()
    const posted = await fetch(`${url}/v1/sessions/${first}/layers/1/step`, { method: 'POST', body })
    const want = parseFrame(new Uint8Array(await posted.arrayBuffer()))
    const socket = new WebSocket(`${url.replace('http', 'ws')}/v1/sessions/${second}/socket`, ['pariskv', 'other'])
    socket.binaryType = 'arraybuffer'
    await once(socket as never, 'open')
    expect(socket.protocol).toBe('pariskv')
    socket.send(stepFrame({ op: 'step', layer: '1', offset: '0' }))
    const [{ data }] = (await once(socket as never, 'message')) as [MessageEvent<ArrayBuffer>]
    const got = parseFrame(new Uint8Array(data))
    expect(got.metadata.get('status')).toBe('200')
    expect(got.tensors).toEqual(want.tensors)
    socket.close()
  })

  test('refuses a WebSocket without a token before it opens', async () => {
    const { url } = await start({ auth: { tokens: new Map([['secret', 'a']]) } })
    const socket = new WebSocket(`${url.replace('http', 'ws')}/v1/sessions/AAAAAAAAAAAAAAAAAAAAAA/socket`)
    const opened = await Promise.race([
      once(socket as never, 'open').then(() => true),
      once(socket as never, 'error').then(() => false),
    ])
    expect(opened).toBe(false)
  })

  test('cuts off a client that never ends its head', async () => {
    const { url } = await start({ timeouts: { headers: 100 } })
    const socket = connect(Number(new URL(url).port), '127.0.0.1')
    socket.write('GET /v1/info HTTP/1.1\r\nHost: localhost\r\nX-Slow: ')
    const [answer] = (await once(socket, 'data')) as [Buffer]
    expect(answer.toString()).toMatch(/^HTTP\/1\.1 408 /)
    await once(socket, 'close')
    expect((await fetch(`${url}/v1/info`)).status).toBe(200)
  })

  test('cuts off a client that stops in the middle of a body', async () => {
    const { url, app } = await start({ timeouts: { idle: 200 } })
    const id = await openSession(url)
    const socket = connect(Number(new URL(url).port), '127.0.0.1')
    socket.on('error', () => {})
    socket.write(
      `PUT /v1/sessions/${id}/layers/0/kv?offset=0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc`,
    )
    await once(socket, 'close')
    await app.drain()
  })

  test('is not ready while it drains, then frees everything', async () => {
    const { url, app, close, closed } = await start()
    const id = await openSession(url)
    // A request that is under way when the server is told to stop, and ends well.
    const body = stepFrame()
    const half = connect(Number(new URL(url).port), '127.0.0.1')
    const path = `/v1/sessions/${id}/layers/0/step`
    half.write(
      `POST ${path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: ${body.length}\r\n\r\n`,
    )
    half.write(body.subarray(0, 10))
    await expect.poll(async () => (await app.request('/metrics')).text()).toContain('requests_in_flight 1')
    const closing = close()
    const ready = await fetch(`${url}/v2/health/ready`)
    expect([ready.status, (await fetch(`${url}/v1/info`)).status]).toEqual([503, 503])
    half.write(body.subarray(10))
    const [answer] = (await once(half, 'data')) as [Buffer]
    expect(answer.toString('latin1')).toMatch(/^HTTP\/1\.1 200 /)
    await closing
    await closed
    await expect(fetch(`${url}/v1/info`)).rejects.toThrow()
    await close()
  })
})

describe('pariskv serve', () => {
  function startCommand(args: readonly string[], env: Record<string, string> = {}) {
    const started = startProcess(process.execPath, ['node_modules/tsx/dist/cli.mjs', 'adapters/cli.ts', ...args], env)
    cleanups.push(() => started.child.kill('SIGKILL'))
    return started
  }

  test.each(['SIGTERM', 'SIGINT'] as const)('says what it runs on, and ends with 0 at %s', async (signal) => {
    const { child, line, lines, exit } = startCommand(
      ['serve', '--port', '0', '--device', 'wasm', '--token', 'one=a'],
      {
        PARISKV_TOKENS: 'two=b, three',
      },
    )
    const url = await line(/listening on (http:\S+),/)
    await line(/^(ready)$/)
    expect(lines.join('\n')).toMatch(/^backend wasm: /m)
    for (const token of ['one', 'two', 'three'])
      expect((await fetch(`${url}/v1/info`, { headers: { authorization: `Bearer ${token}` } })).status).toBe(200)
    expect((await fetch(`${url}/v1/info`)).status).toBe(401)
    child.kill(signal)
    expect(await exit).toEqual([0, null])
    expect(lines.at(-1)).toBe('closed')
  })

  test.each([
    [['--host', '0.0.0.0'], 'loopback'],
    [['--port', '70000'], '--port'],
    [['--max-bytes', '5XiB'], '--max-bytes'],
    [['--ttl', '0'], '--ttl'],
    [['--token', 'a', '--token', 'a'], 'token 2'],
    [['--token', '=a'], 'token 1'],
  ])('refuses %j', async (args, text) => {
    await expect(serveCommand(args)).rejects.toThrow(text)
    if (text.startsWith('--')) await expect(serveCommand(args)).rejects.toThrow('See pariskv serve --help.')
  })

  test.each([
    [['serve', '--port', '0', '--device', 'abacus'], 1, 'abacus'],
    [['serve', '--nothing'], 2, '--nothing'],
    [['serf'], 2, 'no command "serf"'],
    [['serve', '--help'], 0, '--metrics-token'],
    [[], 0, 'pariskv serve'],
  ] as const)('pariskv %j ends with %i', async (args, status, text) => {
    const { exit, lines } = startCommand(args)
    expect(await exit).toEqual([status, null])
    await expect.poll(() => lines.join('\n')).toContain(text)
  })
})
