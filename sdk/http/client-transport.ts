import { ParisError } from '../errors.ts'
import { randomId } from './ids.ts'
import { type Problem, Refusal, STATUS } from './problem.ts'

/** What `createClient` takes. */
export interface ClientOptions {
  /** Where the app is mounted, e.g. `https://host/kv`. */
  readonly url: string
  /** Unset where the server's auth is off. */
  readonly token?: string
  /** By default the global one. */
  readonly fetch?: (request: Request) => Response | Promise<Response>
  /** Opens a WebSocket; by default `new WebSocket(url, protocols)`. */
  readonly webSocket?: (url: string, protocols: string[]) => WebSocket
  /** How often a call that is safe to repeat is sent again, by default 5; 0: never. */
  readonly retries?: number
  /** Milliseconds before the first retry, by default 100; doubled for each further one. A Retry-After that is longer wins. */
  readonly backoff?: number
  /** Bytes of one request that carries a part of a prompt, by default 8 MiB or what the server takes. */
  readonly chunkBytes?: number
}

interface Call {
  readonly body?: BodyInit
  readonly type?: string
  readonly signal?: AbortSignal
  /** Sent under one key, so that a retry is answered and not done again. */
  readonly once?: boolean
  /** Whether it may be sent again; a stream may not. */
  readonly repeatable?: boolean
}

const MOST_WAIT = 30_000
/** Statuses behind which the same request may succeed. */
const PASSING: ReadonlySet<number> = new Set([429, 499, 502, 503, 504])

/** Sends requests, again where that is safe, and turns refusals into errors. */
export class Transport {
  private readonly base: string
  /** Before the number of each call that is sent under a key. */
  private readonly keys = randomId()
  private calls = 0

  constructor(readonly options: ClientOptions) {
    this.base = options.url.replace(/\/+$/, '')
  }

  /** Where a path is. */
  url(path: string): string {
    return this.base + path
  }

  /**
   * A request and its answer.
   * @throws ParisError with the code that the server gave; `backend_unavailable` where it can't be reached; `aborted`
   */
  async send(method: string, path: string, call: Call = {}): Promise<Response> {
    const { retries = 5, backoff = 100 } = this.options
    const key = call.once ? `${this.keys}-${this.calls++}` : undefined
    for (let attempt = 0; ; attempt++) {
      const last = attempt >= retries || call.repeatable === false
      const result = await this.attempt(method, path, call, key)
      if (result instanceof Response && result.ok) return result
      const error = result instanceof Response ? await problemOf(result, path) : unreachable(path, result)
      const passing = !(result instanceof Response) || PASSING.has(result.status)
      if (last || !passing) throw error
      const asked = error instanceof Refusal ? (error.extra.retryAfter ?? 0) * 1000 : 0
      const wait = Math.min(MOST_WAIT, Math.max(asked, backoff * 2 ** attempt * (0.5 + Math.random() / 2)))
      await pause(wait, call.signal, path)
    }
  }

  /** @returns what was thrown where there is no answer. @throws ParisError `aborted` */
  private async attempt(method: string, path: string, call: Call, key: string | undefined): Promise<unknown> {
    const headers: Record<string, string> = {}
    if (this.options.token !== undefined) headers.authorization = `Bearer ${this.options.token}`
    if (call.type) headers['content-type'] = call.type
    if (key) headers['idempotency-key'] = key
    const streamed = call.body instanceof ReadableStream && { duplex: 'half' }
    const init = { method, headers, body: call.body, signal: call.signal, ...streamed } as RequestInit
    try {
      const url = this.url(path)
      return await (this.options.fetch ? this.options.fetch(new Request(url, init)) : fetch(url, init))
    } catch (error) {
      if (call.signal?.aborted) throw abortedError(path, call.signal)
      return error
    }
  }
}

/** The error that a refusal stands for. */
async function problemOf(response: Response, path: string): Promise<ParisError> {
  const body: unknown = await response.json().catch(() => undefined)
  const { code, where, got, want, fix, retryAfter, length } = (body ?? {}) as Partial<Problem>
  const retry = retryAfter ?? (Number(response.headers.get('retry-after')) || undefined)
  if (code === undefined || !Object.hasOwn(STATUS, code)) {
    const parts = {
      got: `status ${response.status}`,
      want: 'an answer of pariskv',
      fix: 'Look at what stands before it.',
    }
    const kind = response.status >= 500 || response.status === 429 ? 'backend_unavailable' : 'bad_parameter'
    return new Refusal(kind, { where: path, ...parts }, { retryAfter: retry })
  }
  const parts = { where: String(where), got: String(got), want: String(want), fix: String(fix) }
  return new Refusal(code, parts, { retryAfter: retry, length })
}

function unreachable(path: string, cause: unknown): ParisError {
  return new ParisError('backend_unavailable', {
    where: path,
    got: `no answer: ${cause instanceof Error ? cause.message : String(cause)}`,
    want: 'a server that can be reached',
    fix: 'Check the url and the network.',
    cause,
  })
}

function abortedError(path: string, signal: AbortSignal): ParisError {
  const fix = 'What was acknowledged before stays; the call under way was taken back or completed.'
  return new ParisError('aborted', {
    where: path,
    got: 'an aborted signal',
    want: 'a live signal',
    fix,
    cause: signal.reason,
  })
}

/** @throws ParisError `aborted` */
async function pause(ms: number, signal: AbortSignal | undefined, path: string): Promise<void> {
  await new Promise<void>((resolve) => {
    const end = () => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, ms)
    signal?.addEventListener('abort', end)
    if (signal?.aborted) end()
  })
  if (signal?.aborted) throw abortedError(path, signal)
}
