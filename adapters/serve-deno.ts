import { upgradeWebSocket } from 'hono/deno'
import { createApp } from '../sdk/http/app.ts'
import { createEngine } from './deno.ts'
import {
  checkHost,
  closing,
  GRACE,
  guarded,
  HOST,
  PORT,
  type ServeOptions,
  type Server,
  urlOf,
  within,
} from './serving.ts'
import { onSignals } from './signals.ts'

export type { ServeOptions, Server } from './serving.ts'

/** What is used of Deno. */
declare const Deno: {
  serve(
    options: { port: number; hostname: string; signal: AbortSignal; onListen: () => void },
    handler: (request: Request) => Response | Promise<Response>,
  ): { readonly addr: { readonly port: number }; readonly finished: Promise<void>; shutdown(): Promise<void> }
}

/**
 * Serves the app on Deno. Resolves as soon as it listens; the app answers 503 to /v2/health/ready until it is warm.
 * Deno warns of its `request.signal`, which fires after every answer; nothing here minds. --unstable-no-legacy-abort ends it.
 * @throws ParisError `bad_config` where it would stand open beyond this machine; what listening throws, as AddrInUse
 */
export async function serve(options: ServeOptions): Promise<Server> {
  const { port = PORT, host = HOST, grace = GRACE, signals = false, engine, ...rest } = options
  checkHost(host, rest.auth)
  const app = createApp({ ...rest, engine: engine ?? (() => createEngine()), upgradeWebSocket })
  const cut = new AbortController()
  const listening = { port, hostname: host, signal: cut.signal, onListen: () => {} }
  const server = Deno.serve(
    listening,
    guarded(rest.auth, (request) => app.fetch(request)),
  )
  const { close, closed } = closing(async () => {
    await within(grace, app.drain())
    if (!(await within(1_000, server.shutdown()))) cut.abort()
    await server.finished
    await app.dispose()
    stop?.()
  })
  const stop = signals ? onSignals(close) : undefined
  void app.ready().catch(() => {})
  return { url: urlOf(host, server.addr.port), app, close, closed }
}
