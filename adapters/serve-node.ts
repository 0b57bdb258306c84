import type { Server as HttpServer } from 'node:http'
import { createAdaptorServer, upgradeWebSocket } from '@hono/node-server'
import { Hono } from 'hono'
import { createApp } from '../sdk/http/app.ts'
import type { OpenAi } from '../sdk/http/openai.ts'
import { createEngine } from './node.ts'
import { nodeBody } from './node-body.ts'
import { BoundedWebSocketServer } from './node-websocket.ts'
import {
  checkHost,
  closing,
  GRACE,
  guarded,
  HOST,
  largestMessage,
  PORT,
  type ServeOptions,
  type Server,
  urlOf,
  within,
} from './serving.ts'
import { onSignals } from './signals.ts'

export type { ServeOptions, Server } from './serving.ts'
export { parseTokens, splitTokens } from './tokens.ts'

/** How long a client may take, in ms. */
export interface ClientTimeouts {
  /** For the head of a request. Default 10,000. */
  readonly headers?: number
  /** For a whole request with its body. Default 300,000. */
  readonly request?: number
  /** Without a byte either way. Default 120,000. */
  readonly idle?: number
}

/** `ServeOptions` and what Node alone has. */
export interface NodeServeOptions extends ServeOptions {
  readonly timeouts?: ClientTimeouts
  /** Models of `createOpenAi` beside the sessions; loaded, drained and disposed of with the server, counted in its `/metrics`. */
  readonly openai?: OpenAi
}

/**
 * Serves the app on Node. Resolves as soon as it listens; the app answers 503 to /v2/health/ready until it is warm.
 * @throws ParisError `bad_config` where it would stand open beyond this machine; what listening throws, as EADDRINUSE
 */
export async function serve(options: NodeServeOptions): Promise<Server> {
  const { port = PORT, host = HOST, grace = GRACE, timeouts = {}, signals = false, engine, openai, ...rest } = options
  const auth = openai?.open ? 'off' : rest.auth
  checkHost(host, auth)
  const app = createApp({ readBody: nodeBody, ...rest, engine: engine ?? (() => createEngine()), upgradeWebSocket })
  openai?.countIn(app)
  const both = openai && new Hono().route('/', openai).all('*', (c) => app.fetch(c.req.raw, c.env))
  const answer = guarded(auth, (request, env: object) => (both ?? app).fetch(request, env))
  const maxPayload = largestMessage(rest)
  const websockets = new BoundedWebSocketServer({ maxPayload, maxUnsent: 4 * maxPayload, heartbeat: 30_000 })
  const { headers = 10_000, request = 300_000, idle = 120_000 } = timeouts
  const server = createAdaptorServer({
    fetch: async (request, env) => {
      const response = await answer(request, env)
      // The rest of a body that was refused unread ends the connection; who keeps it alive has to know.
      if (response.status >= 400 && !env.incoming.complete) response.headers.set('connection', 'close')
      return response
    },
    overrideGlobalObjects: false,
    websocket: { server: websockets },
    serverOptions: {
      headersTimeout: headers,
      requestTimeout: request,
      connectionsCheckingInterval: Math.min(5_000, headers),
      maxHeaderSize: 16_384,
    },
  }) as HttpServer
  server.setTimeout(idle)
  await listen(server, port, host)
  const bound = server.address() as { port: number }
  const { close, closed } = closing(shutDown)
  const stop = signals ? onSignals(close) : undefined
  for (const one of [app, openai]) void one?.ready().catch(() => {})
  return { url: urlOf(host, bound.port), app, close, closed }

  async function shutDown(): Promise<void> {
    // It goes on listening while it drains, so that whoever asks hears that it is no longer ready.
    await within(grace, Promise.all([app.drain(), openai?.drain()]))
    websockets.close()
    const closed = new Promise((resolve) => server.close(resolve))
    server.closeIdleConnections()
    await within(1_000, closed)
    server.closeAllConnections()
    await closed
    await Promise.all([app.dispose(), openai?.dispose()])
    stop?.()
  }
}

function listen(server: HttpServer, port: number, host: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
}
