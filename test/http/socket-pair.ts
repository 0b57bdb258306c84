import type { Context, MiddlewareHandler } from 'hono'
import { type UpgradeWebSocket, WSContext, type WSEvents } from 'hono/ws'
import type { ParisApp } from '../../sdk/http/app.ts'

/** The client's end of a socket that never leaves this process. */
class PairedSocket extends EventTarget {
  readyState = 0
  binaryType = 'blob'
  /** Set by the server's end. */
  receive: (data: unknown) => void = () => {}
  closed: (code: number) => void = () => {}

  send(data: unknown): void {
    const copy = ArrayBuffer.isView(data) ? (data as Uint8Array).slice().buffer : data
    queueMicrotask(() => this.receive(copy))
  }

  close(code = 1000): void {
    if (this.readyState === 3) return
    this.readyState = 3
    this.closed(code)
    this.dispatchEvent(Object.assign(new Event('close'), { code }))
  }
}

/** A host's WebSockets without a network: what `createApp` upgrades with, and what a client connects with. */
export function socketPairs() {
  let arriving: PairedSocket | undefined
  const upgrade = (create: (c: Context) => WSEvents | Promise<WSEvents>): MiddlewareHandler => {
    return async (c) => {
      const events = await create(c)
      const client = arriving as PairedSocket
      const server = new WSContext({
        send: (data) => {
          const copy = (data as Uint8Array).slice().buffer
          queueMicrotask(() => client.dispatchEvent(new MessageEvent('message', { data: copy })))
        },
        close: (code) => client.close(code),
        get readyState() {
          return client.readyState as 0 | 1 | 2 | 3
        },
      })
      client.receive = (data) => events.onMessage?.(new MessageEvent('message', { data }) as never, server)
      client.closed = (code) => events.onClose?.(Object.assign(new Event('close'), { code }) as never, server)
      client.readyState = 1
      events.onOpen?.(new Event('open'), server)
      return c.body(null, 200, { 'x-upgraded': 'yes' })
    }
  }
  return {
    upgradeWebSocket: upgrade as UpgradeWebSocket,
    /** Opens the client's end; it closes where the app refuses. */
    connect(app: ParisApp, url: string, protocols: readonly string[]): WebSocket {
      const socket = new PairedSocket()
      const headers = { upgrade: 'websocket', 'sec-websocket-protocol': protocols.join(', ') }
      queueMicrotask(async () => {
        arriving = socket
        const response = await app.request(new URL(url).pathname, { headers })
        if (response.headers.get('x-upgraded')) socket.dispatchEvent(new Event('open'))
        else socket.close(1006)
      })
      return socket as unknown as WebSocket
    },
  }
}
