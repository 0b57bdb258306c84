import { upgradeWebSocket } from 'hono/deno'
import { createApp } from '../sdk/http/app.ts'
import { createEngine } from './deno.ts'
import { checkHost, closing, GRACE, HOST, PORT, type ServeOptions, type Server, urlOf, within } from './serving.ts'

export type { ServeOptions, Server } from './serving.ts'

/** What is used of Deno. */
declare const Deno: {
  serve(
    options: { port: number; hostname: string; signal: AbortSignal; onListen: () => void },
    handler: (request: Request) => Response | Promise<Response>,
  ): { readonly addr: { readonly port: number }; readonly finished: Promise<void>; shutdown(): Promise<void> }
  addSignalListener(signal: string, handler: () => void): void
  removeSignalListener(signal: string, handler: () => void): void
  exit(status: number): never
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
  const server = Deno.serve(listening, (request) => app.fetch(request))
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

/** @returns takes the handlers away again */
function onSignals(close: () => Promise<void>): () => void {
  let seen = false
  const handler = () => {
    if (seen) Deno.exit(1)
    seen = true
    void close()
  }
  const names = ['SIGTERM', 'SIGINT']
  for (const name of names) Deno.addSignalListener(name, handler)
  return () => {
    for (const name of names) Deno.removeSignalListener(name, handler)
  }
}
