import { defineWebSocketHelper, WSContext } from 'hono/ws'

/** A WebSocket of the Workers platform. */
type WorkerSocket = WebSocket & { accept(): void }

declare const WebSocketPair: new () => { 0: WorkerSocket; 1: WorkerSocket }

const PROTOCOL = 'pariskv'

/** hono's upgrade on Workers, which names the subprotocol: browsers that offered one wait for it. */
export const upgradeWebSocket = defineWebSocketHelper<WorkerSocket>(async (c, events) => {
  if (c.req.header('upgrade')?.toLowerCase() !== 'websocket') return undefined
  const { 0: client, 1: socket } = new WebSocketPair()
  const context = new WSContext<WorkerSocket>({
    raw: socket,
    send: (data) => socket.send(data),
    close: (code, reason) => socket.close(code, reason),
    get readyState() {
      return socket.readyState as 0 | 1 | 2 | 3
    },
  })
  socket.addEventListener('message', (event) => events.onMessage?.(event as MessageEvent<ArrayBuffer>, context))
  socket.addEventListener('close', (event) => events.onClose?.(event, context))
  socket.addEventListener('error', (event) => events.onError?.(event, context))
  socket.binaryType = 'arraybuffer'
  socket.accept()
  events.onOpen?.(new Event('open'), context)
  // Never the one that carries the token.
  const offered = c.req
    .header('sec-websocket-protocol')
    ?.split(',')
    .map((name) => name.trim())
  const headers: Record<string, string> = offered?.includes(PROTOCOL) ? { 'sec-websocket-protocol': PROTOCOL } : {}
  return new Response(null, { status: 101, headers, webSocket: client } as ResponseInit)
})
