/** A Worker of yours with the handler under /v1: wrangler deploy, then wrangler secret put PARISKV_TOKENS (secret=me). */
import kv, { type WorkerEnv } from 'pariskv/workers'

// The class that wrangler.toml binds: one object a session.
export { SessionObject } from 'pariskv/workers'

export default {
  async fetch(request: Request, env: WorkerEnv): Promise<Response> {
    if (new URL(request.url).pathname === '/') return new Response('a model server\n')
    return kv.fetch(request, env)
  },
}
