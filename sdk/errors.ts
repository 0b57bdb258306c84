/** Every code a `ParisError` can carry. Stable: switch on these, not on messages. */
export type ErrorCode =
  | 'bad_config'
  | 'bad_head_dim'
  | 'bad_shape'
  | 'bad_dtype'
  | 'bad_layer'
  | 'bad_k'
  | 'bad_length'
  | 'bad_model'
  | 'bad_prompt'
  | 'not_finite'
  | 'out_of_range'
  | 'capacity'
  | 'out_of_memory'
  | 'disposed'
  | 'busy'
  | 'aborted'
  | 'snapshot_corrupt'
  | 'snapshot_mismatch'
  | 'snapshot_stale'
  | 'backend_unavailable'
  | 'device_lost'
  | 'offload_needs_submit'
  | 'bad_body'
  | 'bad_parameter'
  | 'unauthorized'
  | 'not_found'
  | 'session_lost'
  | 'offset_mismatch'
  | 'idempotency_mismatch'
  | 'too_large'
  | 'unsupported_media'
  | 'too_many'
  | 'deadline'
  | 'not_ready'
  | 'not_stored'
  | 'not_supported'
  | 'internal'

/** What went wrong, said so that the reader can mend it. */
export interface ErrorParts {
  /** The call and argument, e.g. `session.append(keys)`. */
  where: string
  /** What was received. */
  got: string
  /** What would have been accepted. */
  want: string
  /** The next thing to try. */
  fix: string
  cause?: unknown
}

/** The one error type of this package. A call that throws it has changed nothing, unless its code says otherwise. */
export class ParisError extends Error {
  readonly code: ErrorCode
  readonly where: string
  readonly got: string
  readonly want: string
  readonly fix: string

  constructor(code: ErrorCode, parts: ErrorParts) {
    super(`${parts.where}: got ${parts.got}, want ${parts.want}. ${parts.fix} [${code}]`, { cause: parts.cause })
    this.name = code === 'aborted' ? 'AbortError' : 'ParisError'
    this.code = code
    this.where = parts.where
    this.got = parts.got
    this.want = parts.want
    this.fix = parts.fix
  }
}

/** Thrown by a backend that cannot run here. The only error on which the choice of a backend falls through. */
export class BackendUnavailable extends ParisError {
  constructor(backend: string, reason: string, fix: string, cause?: unknown) {
    super('backend_unavailable', { where: backend, got: reason, want: `a machine that runs ${backend}`, fix, cause })
    this.name = 'BackendUnavailable'
  }
}

/** Throws `aborted` when the signal has fired; `where` names the call that stops. */
export function throwIfAborted(signal: AbortSignal | undefined, where: string): void {
  if (!signal?.aborted) return
  throw new ParisError('aborted', {
    where,
    got: 'an aborted signal',
    want: 'a live signal',
    fix: 'The session is as it was before the call; call again to retry.',
    cause: signal.reason,
  })
}

/** A short, safe rendering of any value for an error message. */
export function describe(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.slice(0, 80))
  if (value !== null && typeof value === 'object') return Object.prototype.toString.call(value).slice(8, -1)
  return typeof value === 'function' ? 'a function' : String(value)
}
