import type { IncomingMessage } from 'node:http'
import { WebSocket, WebSocketServer } from 'ws'

/** Of every connection of a server. */
export interface WebSocketLimits {
  /** Bytes of one message. */
  readonly maxPayload: number
  /** Bytes that may wait for a client that does not read, before it is cut off. */
  readonly maxUnsent: number
  /** A client is pinged as often, in ms, and cut off where not a byte came since the last time. */
  readonly heartbeat: number
}

const GOING_AWAY = 1001
/** Ms that a client may take to answer a close. */
const CLOSING = 5_000

/** The WebSocket server that @hono/node-server upgrades connections through; it compresses nothing. */
export class BoundedWebSocketServer extends WebSocketServer {
  constructor({ maxPayload, maxUnsent, heartbeat }: WebSocketLimits) {
    class Connection extends WebSocket {
      override send(data: string | ArrayBuffer | ArrayBufferView): void {
        super.send(data)
        cutOffUnread(this, maxUnsent)
      }
    }
    super({ noServer: true, maxPayload, perMessageDeflate: false, WebSocket: Connection })
    this.on('connection', (connection: WebSocket, { socket }: IncomingMessage) => {
      // hono takes no copy of what is an ArrayBuffer already.
      connection.binaryType = 'arraybuffer'
      // What breaks the protocol is told to the client and closed; without a listener it would end the process.
      connection.on('error', () => {})
      // The pong to it waits for a client that does not read, too.
      connection.on('ping', () => cutOffUnread(connection, maxUnsent))
      let read = -1
      const beat = setInterval(() => {
        // Bytes, since a pong has to wait behind a large message that comes slowly.
        if (socket.bytesRead === read) return connection.terminate()
        read = socket.bytesRead
        if (connection.readyState === WebSocket.OPEN) connection.ping()
      }, heartbeat).unref()
      connection.on('close', () => clearInterval(beat))
    })
  }

  /** Tells every client that the server goes away; who does not answer that is cut off. */
  override close(): void {
    super.close()
    for (const connection of this.clients) {
      connection.close(GOING_AWAY, 'the server goes away')
      setTimeout(() => connection.terminate(), CLOSING).unref()
    }
  }
}

function cutOffUnread(connection: WebSocket, most: number): void {
  if (connection.bufferedAmount > most) connection.terminate()
}
