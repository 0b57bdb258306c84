import { createRoute, type OpenAPIHono, type RouteConfig, z } from '@hono/zod-openapi'
import type { Env } from 'hono'
import { Appended, Info, Opened, ProblemBody, SessionBody, SessionRequest, Truncated } from './components.ts'
import { SAFETENSORS } from './tensors.ts'

/** A whole number in a path or query. */
const whole = (description: string) =>
  z
    .string()
    .regex(/^\d{1,15}$/, 'a whole number of at least 0')
    .transform(Number)
    .openapi({ type: 'integer', minimum: 0, description })

const id = z.string().openapi({ description: 'As POST /v1/sessions gave it.' })
const sessionParams = z.object({ id })
const layerParams = z.object({ id, layer: whole('0 to layers − 1') })
const keyHeader = z.object({
  'idempotency-key': z
    .string()
    .regex(/^[\x21-\x7e]{1,128}$/, '1 to 128 visible ASCII characters')
    .optional()
    .openapi({ description: 'A retry under the same key is answered as the first time, and not done again.' }),
})

const refusal = {
  description: 'Refused; nothing has changed.',
  content: { 'application/problem+json': { schema: ProblemBody } },
}
const json = <S extends z.ZodType>(description: string, schema: S) => ({
  description,
  content: { 'application/json': { schema } },
})
const binary = { type: 'string', format: 'binary' } as const
const frame = (description: string) => ({ description, content: { [SAFETENSORS]: { schema: binary } } })
const body = (description: string) => ({ ...frame(description), required: true })

const KV = 'keys, values [H, T, d]'
const Q = 'queries [Hq, d]'
const OUT = 'output [Hq, d] and lse [Hq], F32; `__metadata__`: length'

/** Read by the handler itself, which bounds it and tells of a wrong field as the SDK does. */
const sessionRequest = {
  description: 'Shape, store, policy, ttl.',
  content: { 'application/json': { schema: { $ref: '#/components/schemas/SessionRequest' } } },
  required: true,
}

/** A call on one layer. */
function layerRoute<
  M extends 'put' | 'post',
  P extends string,
  Q extends z.ZodRawShape,
  G extends RouteConfig['responses'][number],
>(method: M, path: P, summary: string, query: z.ZodObject<Q>, takes: string, gives: G) {
  return createRoute({
    method,
    path: `/v1/sessions/{id}/layers/{layer}/${path}` as `/v1/sessions/{id}/layers/{layer}/${P}`,
    summary,
    request: { params: layerParams, query, headers: keyHeader, body: body(takes) },
    responses: { 200: gives, default: refusal },
  })
}

const offset = whole('The present length of the layer; anything else is refused with 409.')

/** Every route that takes or gives more than a page. */
export const routes = {
  create: createRoute({
    method: 'post',
    path: '/v1/sessions',
    summary: 'Open a session',
    request: { headers: keyHeader, body: sessionRequest },
    responses: { 201: json('Its id and what it may take.', Opened), default: refusal },
  }),
  restore: createRoute({
    method: 'post',
    path: '/v1/sessions:restore',
    summary: 'Open a session from a snapshot, streamed',
    request: {
      query: z.object({ ttl: whole('Seconds that it may stay idle.').optional() }),
      headers: keyHeader,
      body: body('A snapshot.'),
    },
    responses: { 201: json('Its id and what it may take.', Opened), default: refusal },
  }),
  read: createRoute({
    method: 'get',
    path: '/v1/sessions/{id}',
    summary: 'Configuration, lengths, zones, calls, audited recall, bytes',
    request: { params: sessionParams },
    responses: { 200: json('The session.', SessionBody), default: refusal },
  }),
  remove: createRoute({
    method: 'delete',
    path: '/v1/sessions/{id}',
    summary: 'Free a session',
    request: { params: sessionParams },
    responses: { 204: { description: 'Gone.' }, default: refusal },
  }),
  append: layerRoute('put', 'kv', 'Append tokens, one or many', z.object({ offset }), KV, json('How far.', Appended)),
  prefill: layerRoute(
    'post',
    'prefill',
    'Append a prompt and attend to it exactly and causally',
    z.object({ offset: offset.optional() }),
    `${KV}; queries [Hq, T, d]`,
    frame('output [Hq, T, d] and lse [Hq, T], F32; `__metadata__`: offset, tokens, length'),
  ),
  attend: layerRoute('post', 'attend', 'One decode step of a layer', z.object({}), Q, frame(OUT)),
  step: layerRoute(
    'post',
    'step',
    'Append and attend in one request; of both or of none',
    z.object({ offset: offset.optional() }),
    `${KV}; ${Q}`,
    frame(OUT),
  ),
  retrieve: layerRoute(
    'post',
    'retrieve',
    'The keys that matter most, best first',
    z.object({ k: whole("Keys a head, at least 1; by default the policy's.").optional() }),
    Q,
    frame('indices [H, k] U32, scores [H, k] F32; `__metadata__`: k, length'),
  ),
  partial: layerRoute(
    'post',
    'partial',
    'Exact attention to a range of positions, to be merged with those of other ranges or hosts by its lse',
    z.object({ from: whole('First position.'), to: whole('Behind the last one, at most the length.') }),
    Q,
    frame(OUT),
  ),
  truncate: createRoute({
    method: 'post',
    path: '/v1/sessions/{id}/truncate',
    summary: "Forget every layer's tokens from a length on",
    request: { params: sessionParams, query: z.object({ length: whole('Tokens that stay.') }), headers: keyHeader },
    responses: { 200: json('Lengths of all layers.', Truncated), default: refusal },
  }),
  fork: createRoute({
    method: 'post',
    path: '/v1/sessions/{id}/fork',
    summary: 'A second session with the same tokens',
    request: { params: sessionParams, headers: keyHeader },
    responses: { 201: json('The id of the copy.', Opened), default: refusal },
  }),
  snapshot: createRoute({
    method: 'get',
    path: '/v1/sessions/{id}/snapshot',
    summary: 'The session as one safetensors file, streamed',
    request: { params: sessionParams },
    responses: { 200: frame('A snapshot.'), default: refusal },
  }),
  socket: createRoute({
    method: 'get',
    path: '/v1/sessions/{id}/socket',
    summary: 'A WebSocket: one message a call, one a result, in order',
    description:
      'Each message is a frame. Its `__metadata__` holds `op` (append, prefill, attend, step, retrieve, partial or truncate), `layer` and the scalars of that route as decimal text, and, if you like, an `id`, which comes back. The answer is a frame with `status` in `__metadata__`, beside what the route answers; a refusal has no tensors, and the fields of a problem there. Browsers send the subprotocols `pariskv` and `pariskv.token.` + base64url of the token instead of Authorization.',
    request: { params: sessionParams },
    responses: { 101: { description: 'Switched.' }, default: refusal },
  }),
  info: createRoute({
    method: 'get',
    path: '/v1/info',
    summary: 'Backend, epoch and limits',
    responses: { 200: json('This server.', Info), default: refusal },
  }),
}

/** Names what only the handler reads, and the way to show a token. */
export function registerComponents<E extends Env>(app: OpenAPIHono<E>): void {
  app.openAPIRegistry.register('SessionRequest', SessionRequest)
  app.openAPIRegistry.registerComponent('securitySchemes', 'token', { type: 'http', scheme: 'bearer' })
}
