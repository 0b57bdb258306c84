import { describe, type ErrorCode, type ErrorParts, ParisError } from '../errors.ts'

/** The HTTP status of every error code. */
export const STATUS: Readonly<Record<ErrorCode, number>> = {
  bad_config: 400,
  bad_head_dim: 400,
  bad_shape: 400,
  bad_dtype: 400,
  bad_layer: 400,
  bad_k: 400,
  bad_length: 400,
  bad_model: 500,
  bad_prompt: 400,
  bad_body: 400,
  bad_parameter: 400,
  not_finite: 400,
  out_of_range: 400,
  snapshot_corrupt: 400,
  unauthorized: 401,
  not_found: 404,
  disposed: 404,
  offset_mismatch: 409,
  capacity: 409,
  snapshot_mismatch: 409,
  snapshot_stale: 409,
  session_lost: 410,
  too_large: 413,
  unsupported_media: 415,
  idempotency_mismatch: 422,
  too_many: 429,
  busy: 429,
  aborted: 499,
  internal: 500,
  not_supported: 501,
  offload_needs_submit: 501,
  backend_unavailable: 503,
  device_lost: 503,
  deadline: 503,
  not_ready: 503,
  not_stored: 503,
  out_of_memory: 507,
}

/** What a refusal of the handler tells beside the four texts. */
export interface RefusalExtra {
  /** Seconds after which to try again. */
  readonly retryAfter?: number
  /** Tokens that the layer holds. */
  readonly length?: number
}

/** A `ParisError` of the handler. */
export class Refusal extends ParisError {
  constructor(
    code: ErrorCode,
    parts: ErrorParts,
    readonly extra: RefusalExtra = {},
  ) {
    super(code, parts)
  }
}

/** The body of `application/problem+json`. */
export interface Problem extends RefusalExtra {
  readonly type: string
  readonly title: string
  readonly status: number
  readonly code: ErrorCode
  readonly where: string
  readonly got: string
  readonly want: string
  readonly fix: string
}

const TITLES: Partial<Record<ErrorCode, string>> = {
  bad_k: 'k out of range',
  disposed: 'Not found',
  not_finite: 'A value that is not finite',
}

/** Any error as a problem. What is no `ParisError` becomes `internal` and tells nothing of itself. */
export function toProblem(error: unknown): Problem {
  const { code, where, got, want, fix } = error instanceof ParisError ? known(error) : unexpected()
  const extra = error instanceof Refusal ? error.extra : RETRY_SOON.has(code) ? { retryAfter: 1 } : {}
  const words = code.replaceAll('_', ' ')
  const title = TITLES[code] ?? words[0].toUpperCase() + words.slice(1)
  return { type: `urn:pariskv:problem:${code}`, title, status: STATUS[code], code, where, got, want, fix, ...extra }
}

const RETRY_SOON: ReadonlySet<ErrorCode> = new Set(['device_lost', 'backend_unavailable', 'busy', 'out_of_memory'])

/** A session that was disposed of while a call waited is as unknown as any other. */
function known(error: ParisError): Pick<ParisError, 'code' | 'where' | 'got' | 'want' | 'fix'> {
  return error.code === 'disposed' ? notFound() : error
}

function unexpected() {
  return {
    code: 'internal' as const,
    where: 'the handler',
    got: 'an unexpected failure',
    want: 'an answer',
    fix: 'The log of the server has it; retry, and report it if it stays.',
  }
}

/** A problem as a response. */
export function problemResponse(error: unknown): Response {
  const problem = toProblem(error)
  const headers = new Headers({ 'content-type': 'application/problem+json', 'cache-control': 'no-store' })
  if (problem.retryAfter !== undefined) headers.set('retry-after', String(problem.retryAfter))
  if (problem.status === 401) headers.set('www-authenticate', 'Bearer')
  return new Response(JSON.stringify(problem), { status: problem.status, headers })
}

/** One error for all that is not there, so that nobody learns why. */
export function notFound(): Refusal {
  return new Refusal('not_found', {
    where: 'the path',
    got: 'nothing there',
    want: 'a route of this server, or a session of yours that has not expired',
    fix: 'See /openapi.json for the routes; open a session with POST /v1/sessions.',
  })
}

/** @param name of a scalar in path, query or header */
export function badParameter(name: string, got: unknown, want: string): Refusal {
  const fix = 'See /openapi.json for every parameter and its range.'
  return new Refusal('bad_parameter', { where: name, got: describe(got), want, fix })
}

export function badBody(got: string, want: string, fix: string, cause?: unknown): Refusal {
  return new Refusal('bad_body', { where: 'the body', got, want, fix, cause })
}

/** @param got e.g. `256 requests` */
export function tooMany(where: string, got: string, want: string, retryAfter = 1): Refusal {
  const fix = 'Wait for Retry-After, then try again with fewer calls at a time.'
  return new Refusal('too_many', { where, got, want, fix }, { retryAfter })
}
