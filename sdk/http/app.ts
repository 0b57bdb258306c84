import { OpenAPIHono } from '@hono/zod-openapi'
import type { Session } from '../session/session.ts'
import { Auth } from './auth.ts'
import { withDeadline } from './call.ts'
import { answerOp, type HttpEnv } from './calls.ts'
import { docsPage } from './docs.ts'
import { observe } from './observe.ts'
import { createSession, forkSession } from './open.ts'
import type { AppOptions } from './options.ts'
import { PROBES, probes } from './probes.ts'
import { badParameter, notFound, problemResponse, Refusal } from './problem.ts'
import { registerComponents, routes } from './schema.ts'
import { idTaken, Service } from './service.ts'
import { infoView, sessionView } from './session-view.ts'
import { openSocket } from './socket.ts'
import { restoreSession, snapshotResponse } from './streams.ts'

export type { Limits } from './limits.ts'
export type { AppOptions, Journal, LogEntry, SessionRecord } from './options.ts'
export type { Problem } from './problem.ts'

/**
 * The SDK over HTTP, to mount or to serve. It is base-path agnostic, keeps nothing global and does nothing until the
 * first request or `ready()`.
 * @throws ParisError never here: what cannot be served is told as `application/problem+json`
 */
export function createApp(options: AppOptions) {
  const service = new Service(options)
  const auth = new Auth(options)
  const app = new OpenAPIHono<HttpEnv>({
    defaultHook: (result) => {
      if (result.success) return
      const issue = result.error.issues[0]
      throw badParameter(issue.path.join('.') || result.target, undefined, issue.message)
    },
  })
  app.onError((error) => problemResponse(error))
  app.notFound(() => problemResponse(notFound()))
  registerComponents(app)
  for (const path of [...GUARDED, ...PROBES, '/docs']) app.use(path, observe(service))
  probes(app, service, auth)
  for (const path of GUARDED)
    app.use(path, async (c, next) => {
      c.set('tenant', auth.tenantOf(c.req.raw))
      c.set('service', service)
      service.checkOpen()
      await next()
    })
  const chained = app
    .openapi(routes.info, () => typed(Response.json(infoView(service))))
    .openapi(routes.create, (c) => typed(createSession(c, c.req.valid('header')['idempotency-key'])))
    .openapi(routes.restore, (c) => typed(restoreSession(c, c.req.valid('query').ttl, c.req.header('idempotency-key'))))
    .openapi(routes.read, async (c) => {
      const entry = service.sessions.get(c.req.valid('param').id, c.var.tenant)
      return typed(service.sessions.use(entry, async () => Response.json(sessionView(service, entry))))
    })
    .openapi(routes.remove, async (c) => {
      const entry = service.sessions.get(c.req.valid('param').id, c.var.tenant)
      await service.admission.request(() =>
        service.sessions.use(entry, () =>
          withDeadline(service.limits.deadline, c.req.raw.signal, (signal) =>
            service.sessions.inOrder(entry, signal, () => service.sessions.remove(entry)),
          ),
        ),
      )
      return c.body(null, 204)
    })
    .openapi(routes.append, (c) => typed(answerLayer(c, 'append', c.req.valid('param'), c.req.valid('query'))))
    .openapi(routes.prefill, (c) => answerLayer(c, 'prefill', c.req.valid('param'), c.req.valid('query')))
    .openapi(routes.attend, (c) => answerLayer(c, 'attend', c.req.valid('param'), {}))
    .openapi(routes.step, (c) => answerLayer(c, 'step', c.req.valid('param'), c.req.valid('query')))
    .openapi(routes.retrieve, (c) => answerLayer(c, 'retrieve', c.req.valid('param'), c.req.valid('query')))
    .openapi(routes.partial, (c) => answerLayer(c, 'partial', c.req.valid('param'), c.req.valid('query')))
    .openapi(routes.truncate, (c) =>
      typed(answerOp(c, 'truncate', c.req.valid('param').id, c.req.valid('query'), c.req.header('idempotency-key'))),
    )
    .openapi(routes.fork, (c) => typed(forkSession(c, c.req.valid('param').id, c.req.header('idempotency-key'))))
    .openapi(routes.snapshot, (c) =>
      snapshotResponse(service, service.sessions.get(c.req.valid('param').id, c.var.tenant), c.req.raw),
    )
    .openapi(routes.socket, (c) => openSocket(c, c.req.valid('param').id, auth.lookUp(c.req.raw)))
    .doc31('/openapi.json', { openapi: '3.1.0', info: INFO, security: [{ token: [] }] })
    // Browsers send no token for a page: it asks for one and reads openapi.json with it.
    .get('/docs', (c) => c.html(docsPage()))
  return Object.assign(chained, {
    /** What `/metrics` tells; `countIn` of an app of `createOpenAi` beside this one has that app's answers told, too. */
    metrics: service.metrics,
    /** Opens and checks the engine. @throws ParisError `backend_unavailable`, `device_lost` */
    async ready(): Promise<void> {
      await service.host.ready()
    },
    /** Refuses new requests, says so at `/v2/health/ready`, and waits for those under way. */
    async drain(): Promise<void> {
      service.draining = true
      for (const close of service.onDrain) close()
      await service.admission.quiet()
    },
    /** Frees every session, and the engine where the app opened it. */
    dispose: () => service.dispose(),
    /**
     * Serves a session that the host has loaded again, on the engine of this app.
     * @throws ParisError `too_many`, `out_of_memory`, `bad_config` for a session of another engine, `internal` for an id
     * that is taken
     */
    async adopt(id: string, parts: { tenant: string; session: Session; ttl: number }): Promise<void> {
      const engine = await service.host.ready()
      if (parts.session.state.backend !== engine.backend) throw foreign()
      if (service.sessions.has(id)) throw idTaken('app.adopt(id)')
      const release = service.admission.reserve(parts.tenant, service.bytesOf(engine, parts.session.config))
      service.add({ id, ...parts, engine, release })
    },
    /** Removes the sessions that have expired; a timer does so as well unless `sweepEvery` is 0. */
    sweep: () => service.sweep(),
  })
}

/** What `createApp` makes: a Hono app, typed for hono/client, with a life of its own. */
export type ParisApp = ReturnType<typeof createApp>

/** What needs a token; a host's own routes beside these are left alone. */
const GUARDED = ['/v1/*', '/openapi.json'] as const

const INFO = { title: 'pariskv', version: '1', description: 'KV-cache retrieval for long contexts, over HTTP.' }

/** A response whose body its route's schema describes: the type stands there. */
function typed(response: Response | Promise<Response>) {
  return response as Promise<never>
}

function foreign(): Refusal {
  const fix = 'Restore or replay it on the engine that the app was given.'
  const parts = { got: 'a session of another engine', want: 'one of the engine of this app', fix }
  return new Refusal('bad_config', { where: 'app.adopt(session)', ...parts })
}

function answerLayer(
  c: Parameters<typeof answerOp>[0],
  name: Parameters<typeof answerOp>[1],
  { id, layer }: { id: string; layer: number },
  query: Parameters<typeof answerOp>[3],
): Promise<Response> {
  return answerOp(c, name, id, { ...query, layer }, c.req.header('idempotency-key'))
}
