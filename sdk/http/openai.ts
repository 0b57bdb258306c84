import { type Context, Hono } from 'hono'
import { routePath } from 'hono/route'
import { Auth } from './auth.ts'
import { withBody } from './body.ts'
import type { Metrics } from './metrics.ts'
import { type Observers, observe } from './observe.ts'
import { answerEvents, CHAT, type Face, TEXT, wholeAnswer } from './openai-answer.ts'
import { openAiErrorResponse, toOpenAiError } from './openai-errors.ts'
import type { OpenAiOptions } from './openai-options.ts'
import { type Asked, parseChat, parseText } from './openai-schema.ts'
import { OpenAiService } from './openai-service.ts'
import { streamEvents } from './openai-stream.ts'
import { notFound } from './problem.ts'

export type { OpenAiError } from './openai-errors.ts'
export type { OpenAiLimits, OpenAiOptions } from './openai-options.ts'

interface OpenAiEnv {
  Variables: { tenant: string }
}

const PATHS = ['/v1/chat/completions', '/v1/completions', '/v1/models', '/v1/models/:model{.+}'] as const

/**
 * Models behind the API that OpenAI's clients speak: `POST /v1/chat/completions` and `/v1/completions`, whole or
 * streamed, and `GET /v1/models`. To mount, beside `createApp` if you like (this one first), or to serve. It keeps
 * nothing global and does nothing until the first request or `ready()`. A client that leaves ends its answer and frees
 * the cache. Beyond the API it takes `top_k` and `ignore_eos`; without `temperature` the model's own default holds.
 * @throws ParisError never here: what cannot be served is told as `{ error: { message, type, param, code } }`
 */
export function createOpenAi(options: OpenAiOptions) {
  const service = new OpenAiService(options)
  const auth = new Auth(options)
  const created = Math.floor(Date.now() / 1000)
  const app = new Hono<OpenAiEnv>()
  app.onError((error, c) => openAiErrorResponse(error, promptParam(c)))
  app.notFound((c) => openAiErrorResponse(notFound(), promptParam(c)))
  const observers: Observers = { options }
  const watched = observe(observers)
  for (const path of PATHS)
    app.use(path, watched, async (c, next) => {
      c.set('tenant', auth.tenantOf(c.req.raw))
      service.checkOpen()
      await next()
    })
  const modelView = (id: string) => ({ id, object: 'model', created, owned_by: 'pariskv' })
  app.post('/v1/chat/completions', (c) => complete(service, c, CHAT, parseChat))
  app.post('/v1/completions', (c) => complete(service, c, TEXT, parseText))
  app.get('/v1/models', (c) => c.json({ object: 'list', data: service.models.names.map(modelView) }))
  app.get('/v1/models/:model{.+}', (c) => {
    const name = c.req.param('model')
    service.models.check(name)
    return c.json(modelView(name))
  })
  // Its paths are its own by any method, so that an app behind it does not answer, and count, them again.
  for (const path of PATHS) app.all(path, (c) => openAiErrorResponse(notFound(), promptParam(c)))
  return Object.assign(app, {
    /** Whether anybody may call. */
    open: options.auth === 'off',
    /** Has the `/metrics` of an app of `createApp` beside this one count this one's requests, too; call it once. */
    countIn({ metrics }: { readonly metrics: Metrics }): void {
      observers.metrics = metrics
      metrics.include(service.admission)
    },
    /** Loads the models. @throws ParisError as loading them does */
    ready: () => service.models.ready(),
    /** Refuses new requests, and waits for the answers under way. */
    drain: () => service.drain(),
    /** Ends the answers under way, and frees the models that the app loaded. May be called again. */
    dispose: () => service.dispose(),
  })
}

/** What `createOpenAi` makes: a Hono app with a life of its own. */
export type OpenAi = ReturnType<typeof createOpenAi>

/** Settles with the response: a whole answer at its end, a stream once it begins. */
function complete(
  service: OpenAiService,
  c: Context<OpenAiEnv>,
  face: Face,
  parse: (bytes: Uint8Array) => Asked,
): Promise<Response> {
  const { admission, limits, options } = service
  const { tenant } = c.var
  const request = c.req.raw
  const start = performance.now()
  return new Promise<Response>((answer, refuse) => {
    service
      .request(request.signal, async (signal, leave) => {
        const asked = await withBody(request, limits.body, admission, signal, async (bytes) => parse(bytes))
        await service.answer(tenant, asked, signal, async (answering) => {
          if (!asked.stream) return answer(Response.json(await wholeAnswer(face, asked, answering), NOT_STORED))
          const failure = (error: unknown) => {
            const { status, code, body } = toOpenAiError(error, promptParam(c))
            const ms = performance.now() - start
            const route = routePath(c)
            options.logger?.({
              method: 'POST',
              route,
              status,
              ms,
              tenant,
              code,
              error: status === 500 ? error : undefined,
            })
            return body
          }
          return streamEvents(answerEvents(face, asked, answering), { signal, leave, answer, failure })
        })
      })
      .catch(refuse)
  })
}

const NOT_STORED = { headers: { 'cache-control': 'no-store' } }

function promptParam(c: Context<OpenAiEnv>): 'messages' | 'prompt' {
  return c.req.path.endsWith('/chat/completions') ? 'messages' : 'prompt'
}
