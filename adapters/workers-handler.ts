import { getPath } from 'hono/utils/url'
import { tokenOf } from '../sdk/http/auth.ts'
import { base64url, randomId } from '../sdk/http/ids.ts'
import { problemResponse, Refusal } from '../sdk/http/problem.ts'
import { frontOf } from './workers-front.ts'
import { FORK_HEADER, ID_HEADER, type WorkerEnv } from './workers-object.ts'

export { SessionObject, type WorkerEnv } from './workers-object.ts'

/** The Worker: who asks is checked here, before any Durable Object is reached; each session has an object of its own. */
export default {
  async fetch(request: Request, env: WorkerEnv): Promise<Response> {
    try {
      const { app, auth } = frontOf(env)
      const route = routeOf(request)
      if (!route) {
        // Nothing goes on here once a request is answered, so what a probe asks for is done within it.
        if (PROBES.has(getPath(request))) await app.ready()
        return await app.fetch(request)
      }
      const tenant = auth.tenantOf(request)
      if (route.kind === 'session') return await ask(env, route.id, addressed(request))
      const id = await idFor(request, tenant)
      return await (route.kind === 'fork' ? fork(env, route.id, id, request) : open(env, id, request))
    } catch (error) {
      return problemResponse(error)
    }
  },
}

const PROBES: ReadonlySet<string> = new Set(['/ping', '/v2/health/ready'])

type Route = { readonly kind: 'open' } | { readonly kind: 'session' | 'fork'; readonly id: string }

/** Where a request belongs; undefined for whatever no object has to see, as an id that cannot be one. */
function routeOf(request: Request): Route | undefined {
  // What the handler's own router goes by: it decodes.
  const path = getPath(request)
  if (request.method === 'POST' && /^\/v1\/sessions(:restore)?$/.test(path)) return { kind: 'open' }
  const [, id, rest] = /^\/v1\/sessions\/([\w-]{22})(\/.*)?$/.exec(path) ?? []
  if (id === undefined) return undefined
  return { kind: request.method === 'POST' && rest === '/fork' ? 'fork' : 'session', id }
}

/**
 * The id of a session to be opened: 128 random bits, or under an Idempotency-Key 128 bits of a digest that only who has
 * the token can make, so that a retry reaches the same object.
 */
async function idFor(request: Request, tenant: string): Promise<string> {
  const key = request.headers.get('idempotency-key')
  if (key === null) return randomId()
  const text = JSON.stringify([getPath(request), tenant, tokenOf(request), key])
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text))
  return base64url(new Uint8Array(digest, 0, 16))
}

/** Sends a request to a session's object. @throws ParisError `not_ready` where that fails outside of its handler */
async function ask(env: WorkerEnv, id: string, request: Request): Promise<Response> {
  try {
    return await env.SESSIONS.get(env.SESSIONS.idFromName(id) as never).fetch(request)
  } catch (cause) {
    throw new Refusal(
      'not_ready',
      {
        where: 'the session',
        got: 'an object that is being started again',
        want: 'an object that answers',
        fix: 'Ask for the length of the layers, then try again.',
        cause,
      },
      { retryAfter: 1 },
    )
  }
}

function open(env: WorkerEnv, id: string, request: Request): Promise<Response> {
  return ask(env, id, addressed(request, id))
}

/** A request with the id for its object to open; nobody else may name one. */
function addressed(request: Request, id?: string): Request {
  if (id === undefined && !OWN_HEADERS.some((name) => request.headers.has(name))) return request
  const copy = new Request(request)
  for (const name of OWN_HEADERS) copy.headers.delete(name)
  if (id !== undefined) copy.headers.set(ID_HEADER, id)
  return copy
}

const OWN_HEADERS = [ID_HEADER, FORK_HEADER]

/** A fork lives in an object of its own: a snapshot, streamed from the one to the other. */
async function fork(env: WorkerEnv, from: string, to: string, request: Request): Promise<Response> {
  const headers = { authorization: `Bearer ${tokenOf(request)}` }
  const made = { ...headers, [ID_HEADER]: to, [FORK_HEADER]: from }
  const at = new URL(`/v1/sessions/${from}`, request.url)
  const restore = new URL('/v1/sessions:restore', request.url)
  if (request.headers.has('idempotency-key')) {
    // Without a body it opens nothing; an object that was made by this key before answers as it did then.
    const again = await ask(env, to, new Request(restore, { method: 'POST', headers: made }))
    if (again.ok) return again
  }
  const view = await ask(env, from, new Request(at, { headers }))
  if (!view.ok) return view
  const { ttl } = (await view.json()) as { ttl: number }
  const snapshot = await ask(env, from, new Request(`${at}/snapshot`, { headers }))
  if (!snapshot.ok) return snapshot
  restore.searchParams.set('ttl', String(ttl))
  const init = { method: 'POST', headers: made, body: snapshot.body, duplex: 'half' }
  return ask(env, to, new Request(restore, init as RequestInit))
}
