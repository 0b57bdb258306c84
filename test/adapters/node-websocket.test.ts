import { createServer, type IncomingMessage } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { afterEach, describe, expect, test } from 'vitest'
import { type WebSocketConnection, WebSocketServer } from '../../adapters/node-websocket.ts'

const LIMITS = { maxPayload: 100_000, maxUnsent: 1_000_000, heartbeat: 10_000 }
const KEY = 'dGhlIHNhbXBsZSBub25jZQ=='

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

/** An HTTP server whose sockets send every message back. */
async function startEcho(limits = LIMITS) {
  const websockets = new WebSocketServer(limits)
  const connections: WebSocketConnection[] = []
  const closes: number[] = []
  const server = createServer()
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) =>
    websockets.handleUpgrade(request, socket, head, (connection) => {
      connections.push(connection)
      connection.on('message', (data: Buffer, binary: boolean) => connection.send(binary ? data : data.toString()))
      connection.on('close', (code: number) => closes.push(code))
    }),
  )
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  cleanups.push(() => new Promise((resolve) => server.close(resolve)).then(() => server.closeAllConnections()))
  return { port: (server.address() as AddressInfo).port, websockets, connections, closes }
}

/** A socket of Node's own client. */
async function open(port: number): Promise<WebSocket> {
  const socket = new WebSocket(`ws://127.0.0.1:${port}/`)
  socket.binaryType = 'arraybuffer'
  await new Promise((resolve, reject) => {
    socket.onopen = resolve
    socket.onerror = reject
  })
  cleanups.push(() => socket.close())
  return socket
}

const nextMessage = (socket: WebSocket) =>
  new Promise<unknown>((resolve) => socket.addEventListener('message', ({ data }) => resolve(data), { once: true }))
const closeOf = (socket: WebSocket) =>
  new Promise<{ code: number; reason: string }>((resolve) =>
    socket.addEventListener('close', ({ code, reason }) => resolve({ code, reason }), { once: true }),
  )

/** A client that writes bytes of its own choice behind a handshake. */
async function openRaw(port: number, headers = `Sec-WebSocket-Key: ${KEY}\r\nSec-WebSocket-Version: 13\r\n`) {
  const socket = connect(port, '127.0.0.1')
  socket.on('error', () => {})
  cleanups.push(() => socket.destroy())
  socket.write(`GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n${headers}\r\n`)
  const head = await read(socket)
  return { socket, head: head.toString() }
}

const read = (socket: Socket) => new Promise<Buffer>((resolve) => socket.once('data', resolve))
const ended = (socket: Socket) => new Promise<void>((resolve) => socket.once('close', () => resolve()))

/** A masked frame. @param first its first byte: 0x80 for the last part, and the opcode */
function frame(first: number, payload: Uint8Array, mask = [1, 2, 3, 4]): Buffer {
  const { length } = payload
  const size = length < 126 ? [0x80 | length] : [0x80 | 126, length >> 8, length & 255]
  return Buffer.from([first, ...size, ...mask, ...payload.map((byte, i) => byte ^ mask[i & 3])])
}

/** The close code that the server answers with. */
async function closeCode(socket: Socket): Promise<number> {
  const answer = await read(socket)
  expect(answer[0]).toBe(0x88)
  return answer.readUInt16BE(2)
}

describe('the WebSocket server on Node', () => {
  test.each([0, 1, 125, 126, 65_535, 65_536, 100_000])('sends %i bytes back', async (length) => {
    const { port } = await startEcho()
    const socket = await open(port)
    const data = Uint8Array.from({ length }, (_, i) => i * 7)
    const answer = nextMessage(socket)
    socket.send(data)
    expect(Buffer.compare(Buffer.from((await answer) as ArrayBuffer), data)).toBe(0)
  })

  test('keeps text apart from bytes', async () => {
    const { port } = await startEcho()
    const socket = await open(port)
    const answer = nextMessage(socket)
    socket.send('keys and välues')
    expect(await answer).toBe('keys and välues')
  })

  test('closes when the client does, and tells clients when it goes away', async () => {
    const { port, websockets, closes } = await startEcho()
    const [first, second] = [await open(port), await open(port)]
    const closed = [closeOf(first), closeOf(second)]
    first.close(4001, 'enough')
    expect(await closed[0]).toEqual({ code: 4001, reason: '' })
    websockets.close()
    expect(await closed[1]).toEqual({ code: 1001, reason: 'the server goes away' })
    await expect.poll(() => closes).toEqual([4001, 1001])
  })

  test('puts the parts of a message together, whatever the cuts, with a ping between them', async () => {
    const { port } = await startEcho()
    const { socket, head } = await openRaw(port)
    expect(head).toContain('Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=')
    const bytes = Buffer.concat([
      ...[frame(0x02, Buffer.from('ab')), frame(0x00, Buffer.alloc(0)), frame(0x89, Buffer.from('?'))],
      frame(0x80, Buffer.from('cd')),
    ])
    const got: Buffer[] = []
    socket.on('data', (chunk: Buffer) => got.push(chunk))
    for (const byte of bytes) {
      socket.write(Uint8Array.of(byte))
      await new Promise(setImmediate)
    }
    const want = Buffer.concat([Buffer.from([0x8a, 1]), Buffer.from('?'), Buffer.from([0x82, 4]), Buffer.from('abcd')])
    await expect.poll(() => Buffer.concat(got).toString('hex')).toBe(want.toString('hex'))
  })

  const text = (bytes: number[]) => frame(0x81, Uint8Array.from(bytes))
  test.each([
    ['a frame without a mask', Buffer.from([0x82, 1, 65]), 1002],
    ['reserved bits', frame(0xc2, Buffer.from('a')), 1002],
    ['an opcode that nobody knows', frame(0x83, Buffer.from('a')), 1002],
    ['a ping in parts', frame(0x09, Buffer.from('a')), 1002],
    ['a ping of 126 bytes', frame(0x89, Buffer.alloc(126)), 1002],
    ['a part of no message', frame(0x80, Buffer.from('a')), 1002],
    ['a message within another', Buffer.concat([frame(0x02, Buffer.from('a')), frame(0x82, Buffer.from('b'))]), 1002],
    ['text that is not UTF-8', text([0xc3, 0x28]), 1007],
    ['a frame of 2^63 bytes', Buffer.from([0x82, 0xff, 0x7f, ...Array(7).fill(255), 0, 0, 0, 0]), 1009],
    [
      'more in parts than a message may have',
      Buffer.concat(
        Array(4)
          .fill(0)
          .map((_, i) => frame(i ? 0 : 2, Buffer.alloc(30_000))),
      ),
      1009,
    ],
  ])('ends a connection at %s', async (_, bytes, code) => {
    const { port, closes } = await startEcho()
    const { socket } = await openRaw(port)
    const gone = ended(socket)
    socket.write(bytes)
    expect(await closeCode(socket)).toBe(code)
    socket.end()
    await gone
    await expect.poll(() => closes).toEqual([code])
  })

  test.each([
    ['no key', 'Sec-WebSocket-Version: 13\r\n'],
    ['a short key', 'Sec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n'],
    ['an old version', `Sec-WebSocket-Key: ${KEY}\r\nSec-WebSocket-Version: 8\r\n`],
  ])('refuses a handshake with %s', async (_, headers) => {
    const { port, connections } = await startEcho()
    const { head } = await openRaw(port, headers)
    expect(head).toMatch(/^HTTP\/1\.1 426 /)
    expect(connections).toHaveLength(0)
  })

  test('cuts off a client that is silent', async () => {
    const { port, closes } = await startEcho({ ...LIMITS, heartbeat: 20 })
    const { socket } = await openRaw(port)
    await ended(socket)
    await expect.poll(() => closes).toEqual([1006])
  })

  test('keeps a client that answers pings', async () => {
    const { port, connections } = await startEcho({ ...LIMITS, heartbeat: 100 })
    const socket = await open(port)
    await new Promise((resolve) => setTimeout(resolve, 450))
    expect(connections[0].readyState).toBe(1)
    socket.close()
  })

  test('cuts off a client that does not read', async () => {
    const { port, connections, closes } = await startEcho()
    const { socket } = await openRaw(port)
    socket.pause()
    const piece = new Uint8Array(100_000)
    await expect
      .poll(() => {
        for (let i = 0; i < 100; i++) connections[0].send(piece)
        return closes
      })
      .toEqual([1006])
  })
})
