import { type ErrorCode, ParisError } from '../errors.ts'
import { Refusal, STATUS, toProblem } from './problem.ts'

/** The body of a refusal as clients of this API read it. */
export interface OpenAiError {
  readonly error: {
    readonly message: string
    readonly type: 'invalid_request_error' | 'requests' | 'server_error'
    /** The field of the request. */
    readonly param: string | null
    readonly code: string
  }
}

/** Where an error has another status here than in the handler of sessions. */
const OWN_STATUS: Partial<Record<ErrorCode, number>> = {
  capacity: 400,
  disposed: 503,
  out_of_memory: 503,
  not_finite: 500,
}

/** Names that the API has for what is refused; other errors keep their own code. */
const NAMES: Partial<Record<ErrorCode, string>> = {
  capacity: 'context_length_exceeded',
  unauthorized: 'invalid_api_key',
  too_many: 'rate_limit_exceeded',
  busy: 'rate_limit_exceeded',
  not_found: 'unknown_url',
}

const FIXES: Partial<Record<ErrorCode, string>> = {
  unauthorized: 'Send a key of this server as Authorization: Bearer.',
  not_found: 'POST /v1/chat/completions or /v1/completions, GET /v1/models.',
  out_of_memory: 'Shorten the prompt, ask for fewer tokens, or try again after Retry-After.',
  aborted: 'Send it again.',
}

/** What an error becomes: its status, its code and the body. @param promptParam the field that holds the prompt */
export function toOpenAiError(error: unknown, promptParam: 'messages' | 'prompt') {
  const { code, where, got, want, fix, retryAfter } = toProblem(shown(error))
  const status = OWN_STATUS[code] ?? STATUS[code]
  const type = status === 429 ? 'requests' : status >= 500 ? 'server_error' : 'invalid_request_error'
  const model = code === 'not_found' && where === 'model'
  const prompt = code === 'bad_prompt' || code === 'capacity'
  const param = prompt ? promptParam : code === 'bad_parameter' || model ? where : null
  const message = `${param ?? where}: got ${got}, want ${want}. ${(!model && FIXES[code]) || fix}`
  const body: OpenAiError = { error: { message, type, param, code: model ? 'model_not_found' : (NAMES[code] ?? code) } }
  return { status, code, body, retryAfter }
}

/** An error as a response. */
export function openAiErrorResponse(error: unknown, promptParam: 'messages' | 'prompt'): Response {
  const { status, body, retryAfter } = toOpenAiError(error, promptParam)
  const headers = new Headers({ 'cache-control': 'no-store' })
  if (retryAfter !== undefined) headers.set('retry-after', String(retryAfter))
  if (status === 401) headers.set('www-authenticate', 'Bearer')
  return Response.json(body, { status, headers })
}

/** A model that cannot be read is told by the files of the server, and one that is gone by nothing that a caller did. */
function shown(error: unknown): unknown {
  if (!(error instanceof ParisError)) return error
  if (error.code === 'bad_model') return undefined
  if (error.code !== 'disposed') return error
  return notReady('a model that is being closed')
}

/** @param where a field of the request */
export function badField(where: string, got: string, want: string, fix = 'See the API for every field and its range.') {
  return new Refusal('bad_parameter', { where, got, want, fix })
}

export function unknownModel(got: string): Refusal {
  const fix = 'GET /v1/models tells their names.'
  return new Refusal('not_found', { where: 'model', got, want: 'a model of this server', fix })
}

export function notReady(got: string): Refusal {
  const parts = { where: 'the server', got, want: 'an open one', fix: 'Go to another host, or try again later.' }
  return new Refusal('not_ready', parts, { retryAfter: 1 })
}
