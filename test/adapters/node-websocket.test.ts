import { createServer, type IncomingMessage } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { afterEach, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { BoundedWebSocketServer } from '../../adapters/node-websocket.ts'

const LIMITS = { maxPayload: 100_000, maxUnsent: 1_000_000, heartbeat: 10_000 }
const KEY = 'dGhlIHNhbXBsZSBub25jZQ=='

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

/** An HTTP server whose sockets send every message back. */
async function startEcho(limits = LIMITS) {
  const websockets = new BoundedWebSocketServer(limits)
  const connections: WebSocket[] = []
  const closes: number[] = []
  websockets.on('connection', (connection) => {
    connections.push(connection)
    connection.on('message', (data) => connection.send(data))
    connection.on('close', (code) => closes.push(code))
  })
  const server = createServer()
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) =>
    websockets.handleUpgrade(request, socket, head, (connection) => websockets.emit('connection', connection, request)),
  )
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  cleanups.push(async () => {
    for (const connection of connections) connection.terminate()
    await new Promise((resolve) => server.close(resolve))
  })
  return { port: (server.address() as AddressInfo).port, websockets, connections, closes }
}

/** A client that offers to compress. */
async function open(port: number): Promise<WebSocket> {
  const socket = new WebSocket(`ws://127.0.0.1:${port}/`)
  await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject))
  cleanups.push(() => socket.terminate())
  return socket
}

const closeOf = (socket: WebSocket) =>
  new Promise<{ code: number; reason: string }>((resolve) =>
    socket.once('close', (code, reason) => resolve({ code, reason: reason.toString() })),
  )

/** A client that writes bytes of its own choice behind a handshake, and answers nothing. */
async function openRaw(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1')
  socket.on('error', () => {})
  cleanups.push(() => socket.destroy())
  const lines = ['GET / HTTP/1.1', 'Host: x', 'Upgrade: websocket', 'Connection: Upgrade', 'Sec-WebSocket-Version: 13']
  socket.write(`${[...lines, `Sec-WebSocket-Key: ${KEY}`].join('\r\n')}\r\n\r\n`)
  await new Promise((resolve) => socket.once('data', resolve))
  socket.resume()
  return socket
}

/** The head of a masked frame of 65,536 bytes or more; the mask is 0. */
function headOf(opcode: number, length: number): Buffer {
  const head = Buffer.alloc(14)
  head[0] = 0x80 | opcode
  head[1] = 0xff
  head.writeUInt32BE(length, 6)
  return head
}

describe('the WebSocket server on Node', () => {
  test.each([0, 1, 65_536, 100_000])('sends %i bytes back, not compressed', async (length) => {
    const { port } = await startEcho()
    const socket = await open(port)
    expect(socket.extensions).toBe('')
    const data = Buffer.from(Uint8Array.from({ length }, (_, i) => i * 7))
    const answer = new Promise<Buffer>((resolve) => socket.once('message', resolve))
    socket.send(data)
    expect(Buffer.compare(await answer, data)).toBe(0)
  })

  test('closes when the client does, and tells clients when it goes away', async () => {
    const { port, websockets, closes } = await startEcho()
    const [first, second] = [await open(port), await open(port)]
    const closed = [closeOf(first), closeOf(second)]
    first.close(4001, 'enough')
    expect((await closed[0]).code).toBe(4001)
    websockets.close()
    expect(await closed[1]).toEqual({ code: 1001, reason: 'the server goes away' })
    await expect.poll(() => closes).toEqual([4001, 1001])
  })

  test('refuses a message beyond its limit, and outlives a client that breaks the protocol', async () => {
    const { port, closes } = await startEcho()
    const tooLarge = await open(port)
    const told = closeOf(tooLarge)
    tooLarge.send(new Uint8Array(LIMITS.maxPayload + 1))
    expect((await told).code).toBe(1009)
    const raw = await openRaw(port)
    raw.write(Buffer.from([0x82, 1, 65]))
    await expect.poll(() => closes.length).toBe(2)
    expect((await open(port)).readyState).toBe(WebSocket.OPEN)
  })

  test('cuts off a client that is silent', async () => {
    const { port, closes } = await startEcho({ ...LIMITS, heartbeat: 20 })
    await openRaw(port)
    await expect.poll(() => closes).toEqual([1006])
  })

  test('keeps a client that answers pings', async () => {
    const { port, connections } = await startEcho({ ...LIMITS, heartbeat: 100 })
    await open(port)
    await new Promise((resolve) => setTimeout(resolve, 450))
    expect(connections[0].readyState).toBe(WebSocket.OPEN)
  })

  test('keeps a client whose message comes slowly', async () => {
    const { port, connections } = await startEcho({ ...LIMITS, heartbeat: 150 })
    const socket = await openRaw(port)
    socket.write(headOf(2, 70_000))
    let got = 0
    socket.on('data', (chunk: Buffer) => {
      got += chunk.length
    })
    for (let part = 0; part < 70; part++) {
      socket.write(Buffer.alloc(1000))
      await new Promise((resolve) => setTimeout(resolve, 10))
    }
    await expect.poll(() => got).toBeGreaterThan(70_000)
    expect(connections).toHaveLength(1)
  })

  test('cuts off a client that does not read', async () => {
    const { port, connections, closes } = await startEcho()
    const socket = await openRaw(port)
    socket.pause()
    const piece = new Uint8Array(100_000)
    await expect
      .poll(() => {
        for (let i = 0; i < 100; i++) connections[0].send(piece)
        return closes
      })
      .toEqual([1006])
  })

  test('cuts off a client that pings and does not read', async () => {
    const { port, closes } = await startEcho()
    const socket = await openRaw(port)
    socket.pause()
    const ping = Buffer.concat([Buffer.from([0x89, 0x80 | 125, 0, 0, 0, 0]), Buffer.alloc(125)])
    const pings = Buffer.concat(Array<Buffer>(500).fill(ping))
    await expect
      .poll(
        () => {
          for (let i = 0; i < 50; i++) if (socket.writableLength < 1_000_000) socket.write(pings)
          return closes
        },
        { timeout: 10_000 },
      )
      .toEqual([1006])
  }, 20_000)
})
