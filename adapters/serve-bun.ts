import { upgradeWebSocket, websocket } from 'hono/bun'
import { createApp } from '../sdk/http/app.ts'
import { DEFAULT_LIMITS } from '../sdk/http/limits.ts'
import { createEngine } from './bun.ts'
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

/** What is used of Bun.serve. */
interface BunServer {
  readonly port: number
  stop(cutOff: boolean): Promise<void>
}
declare const Bun: { serve(options: object): BunServer }

/**
 * Serves the app on Bun. Resolves as soon as it listens; the app answers 503 to /v2/health/ready until it is warm.
 * @throws ParisError `bad_config` where it would stand open beyond this machine; what listening throws, as EADDRINUSE
 */
export async function serve(options: ServeOptions): Promise<Server> {
  const { port = PORT, host = HOST, grace = GRACE, signals = false, engine, ...rest } = options
  checkHost(host, rest.auth)
  const app = createApp({ ...rest, engine: engine ?? (() => createEngine()), upgradeWebSocket })
  const maxPayloadLength = largestMessage(rest)
  const server = Bun.serve({
    port,
    hostname: host,
    idleTimeout: 120,
    maxRequestBodySize: rest.limits?.snapshot ?? DEFAULT_LIMITS.snapshot,
    fetch: guarded(rest.auth, (request, server: BunServer) => app.fetch(request, { server })),
    websocket: {
      ...websocket,
      maxPayloadLength,
      idleTimeout: 60,
      sendPings: true,
      backpressureLimit: 4 * maxPayloadLength,
      closeOnBackpressureLimit: true,
    },
  })
  const { close, closed } = closing(async () => {
    await within(grace, app.drain())
    if (!(await within(1_000, server.stop(false)))) await server.stop(true)
    await app.dispose()
    stop?.()
  })
  const stop = signals ? onSignals(close) : undefined
  void app.ready().catch(() => {})
  return { url: urlOf(host, server.port), app, close, closed }
}
