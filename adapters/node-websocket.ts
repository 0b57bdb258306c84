import { isUtf8 } from 'node:buffer'
import { createHash } from 'node:crypto'
import { EventEmitter } from 'node:events'
import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import { FrameError, FrameReader, frameHeader, OPCODE } from './websocket-frames.ts'

/** Of every connection of a server. */
export interface WebSocketLimits {
  /** Bytes of one message. */
  readonly maxPayload: number
  /** Bytes that may wait for a client that does not read, before it is cut off. */
  readonly maxUnsent: number
  /** A client is pinged as often, in ms, and cut off where it was silent since the last time. */
  readonly heartbeat: number
}

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
const NORMAL = 1000
const GOING_AWAY = 1001

/**
 * The WebSocket server that @hono/node-server upgrades connections through: RFC 6455 without extensions.
 * Events: `headers` (the lines of the answer, to add to) and `connection` (a WebSocketConnection and its request).
 */
export class WebSocketServer extends EventEmitter {
  readonly options = { noServer: true }
  private readonly open = new Set<WebSocketConnection>()

  constructor(private readonly limits: WebSocketLimits) {
    super()
  }

  /** Answers an upgrade request; `callback` gets the connection, unless the request asks for something else. */
  handleUpgrade(
    request: IncomingMessage,
    socket: Duplex,
    head: Buffer,
    callback: (connection: WebSocketConnection) => void,
  ): void {
    const {
      'sec-websocket-key': key = '',
      'sec-websocket-version': version,
      'sec-websocket-protocol': offered,
    } = request.headers
    if (request.method !== 'GET' || version !== '13' || !/^[+/0-9A-Za-z]{22}==$/.test(key)) {
      socket.end('HTTP/1.1 426 Upgrade Required\r\nConnection: close\r\nSec-WebSocket-Version: 13\r\n\r\n')
      return
    }
    const accept = createHash('sha1')
      .update(key + GUID)
      .digest('base64')
    const lines = ['HTTP/1.1 101 Switching Protocols', 'Upgrade: websocket', 'Connection: Upgrade']
    lines.push(`Sec-WebSocket-Accept: ${accept}`)
    // Browsers that offered subprotocols wait for one of them.
    if (offered) lines.push(`Sec-WebSocket-Protocol: ${offered.split(',')[0].trim()}`)
    this.emit('headers', lines)
    socket.write(`${lines.join('\r\n')}\r\n\r\n`)
    const connection = new WebSocketConnection(socket, this.limits)
    this.open.add(connection)
    connection.on('close', () => this.open.delete(connection))
    callback(connection)
    connection.start(head)
  }

  /** Tells every client that the server goes away. */
  close(): void {
    for (const connection of this.open) connection.close(GOING_AWAY, 'the server goes away')
  }
}

/** One connection. Events: `message` (Buffer, true for binary), `close` (code, reason), `error`. */
export class WebSocketConnection extends EventEmitter {
  readonly protocol = ''
  /** 0 connecting, 1 open, 2 closing, 3 closed, as of the WebSocket standard. */
  readyState: 0 | 1 | 2 | 3 = 1
  private readonly reader: FrameReader
  /** The message under way, in parts; none between messages. */
  private message: { readonly binary: boolean; readonly parts: Buffer[]; bytes: number } | undefined
  private broken = false
  private heard = true
  private closed: { code: number; reason: Buffer } = { code: 1006, reason: Buffer.alloc(0) }
  private heartbeat: NodeJS.Timeout | undefined

  constructor(
    private readonly socket: Duplex & { setTimeout?: (ms: number) => void; setNoDelay?: (on: boolean) => void },
    private readonly limits: WebSocketLimits,
  ) {
    super()
    this.reader = new FrameReader(limits.maxPayload)
  }

  /** Begins to read. @param head what came with the request */
  start(head: Buffer): void {
    this.socket.setTimeout?.(0)
    this.socket.setNoDelay?.(true)
    this.socket.on('data', (chunk: Buffer) => this.take(chunk))
    this.socket.on('end', () => this.socket.end())
    this.socket.on('error', (error) => this.listenerCount('error') > 0 && this.emit('error', error))
    this.socket.on('close', () => this.finish())
    this.heartbeat = setInterval(() => this.beat(), this.limits.heartbeat).unref()
    if (head.length > 0) this.take(head)
  }

  /** Sends one message; a string as text, anything else as binary. */
  send(data: string | ArrayBuffer | ArrayBufferView): void {
    if (this.readyState !== 1) return
    if (typeof data === 'string') this.write(OPCODE.text, Buffer.from(data))
    else if (data instanceof ArrayBuffer) this.write(OPCODE.binary, Buffer.from(data))
    else this.write(OPCODE.binary, Buffer.from(data.buffer, data.byteOffset, data.byteLength))
  }

  /** Begins the closing handshake; the client has at most five seconds to answer. */
  close(code = NORMAL, reason = ''): void {
    if (this.readyState !== 1) return
    this.readyState = 2
    this.closed = { code, reason: Buffer.from(reason).subarray(0, 120) }
    this.write(OPCODE.close, Buffer.concat([Buffer.from([code >> 8, code & 255]), this.closed.reason]))
    setTimeout(() => this.socket.destroy(), Math.min(this.limits.heartbeat, 5_000)).unref()
  }

  private write(opcode: number, payload: Buffer): void {
    this.socket.cork()
    this.socket.write(frameHeader(opcode, payload.length))
    this.socket.write(payload)
    this.socket.uncork()
    if (this.socket.writableLength > this.limits.maxUnsent) this.socket.destroy()
  }

  private take(chunk: Buffer): void {
    this.heard = true
    if (this.broken) return
    try {
      for (const { fin, opcode, payload } of this.reader.push(chunk))
        if (opcode >= OPCODE.close) this.control(opcode, payload)
        else if (this.readyState === 1) this.data(fin, opcode, payload)
    } catch (error) {
      if (!(error instanceof FrameError)) throw error
      this.broken = true
      this.close(error.closeCode, error.message)
      this.socket.end()
    }
  }

  private control(opcode: number, payload: Buffer): void {
    if (opcode === OPCODE.ping) this.write(OPCODE.pong, payload)
    if (opcode !== OPCODE.close) return
    if (this.readyState === 1) {
      this.closed = { code: payload.length >= 2 ? payload.readUInt16BE(0) : 1005, reason: payload.subarray(2) }
      this.readyState = 2
      this.write(OPCODE.close, payload.subarray(0, 2))
    }
    this.socket.end()
  }

  private data(fin: boolean, opcode: number, payload: Buffer): void {
    if ((opcode === OPCODE.continuation) !== (this.message !== undefined))
      throw new FrameError(1002, 'a part of no message, or a message within another')
    this.message ??= { binary: opcode === OPCODE.binary, parts: [], bytes: 0 }
    const { binary, parts } = this.message
    this.message.bytes += payload.length
    if (this.message.bytes > this.limits.maxPayload)
      throw new FrameError(1009, `${this.message.bytes} bytes, at most ${this.limits.maxPayload}`)
    if (payload.length > 0) parts.push(payload)
    if (!fin) return
    this.message = undefined
    const whole = parts.length === 1 ? parts[0] : Buffer.concat(parts)
    if (!binary && !isUtf8(whole)) throw new FrameError(1007, 'text that is not UTF-8')
    this.emit('message', whole, binary)
  }

  private beat(): void {
    if (this.heard) this.write(OPCODE.ping, Buffer.alloc(0))
    else this.socket.destroy()
    this.heard = false
  }

  private finish(): void {
    if (this.readyState === 3) return
    clearInterval(this.heartbeat)
    this.readyState = 3
    this.emit('close', this.closed.code, this.closed.reason)
  }
}
