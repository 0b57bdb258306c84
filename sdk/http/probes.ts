import type { OpenAPIHono } from '@hono/zod-openapi'
import type { Auth } from './auth.ts'
import type { HttpEnv } from './calls.ts'
import type { Service } from './service.ts'

export const PROBES = ['/v2/*', '/ping', '/metrics'] as const

/** The routes that go without a token, and the metrics, which have one of their own. */
export function probes(app: OpenAPIHono<HttpEnv>, service: Service, auth: Auth): void {
  const { host } = service
  const serving = () => {
    // A probe is a first use: what waits for `ready` would otherwise wait for ever.
    if (host.state === 'cold') host.ready().catch(() => {})
    return host.state === 'ready' && !service.draining
  }
  app.get('/v2/health/live', (c) => c.json({ live: true }))
  app.get('/v2/health/ready', (c) => {
    const ready = serving()
    return c.json({ ready, state: service.draining ? 'draining' : host.state }, ready ? 200 : 503)
  })
  app.get('/ping', (c) => {
    if (serving()) return c.json({ status: 'ready' })
    const coming = !service.draining && !host.failure && (host.state === 'warming' || host.state === 'lost')
    return coming ? c.body(null, 204) : c.json({ status: service.draining ? 'draining' : host.state }, 503)
  })
  app.get('/metrics', (c) => {
    auth.checkMetrics(c.req.raw)
    return c.text(service.metrics.text(service), 200, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' })
  })
}
