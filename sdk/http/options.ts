import type { UpgradeWebSocket } from 'hono/ws'
import type { SessionOptions } from '../config.ts'
import type { Engine } from '../engine.ts'
import type { TensorInput } from '../input.ts'
import type { Limits } from './limits.ts'

/** One answered request. */
export interface LogEntry {
  readonly method: string
  /** The pattern, e.g. `/v1/sessions/:id`; ids and tokens never appear. */
  readonly route: string
  readonly status: number
  readonly ms: number
  readonly tenant?: string
  /** The code of a refusal. */
  readonly code?: string
  /** What was thrown, where the answer is a 500. */
  readonly error?: unknown
}

/** A session as a host stores it. */
export interface SessionRecord {
  readonly tenant: string
  readonly options: SessionOptions
  /** Seconds. */
  readonly ttl: number
}

/** A store of the host's own. Each call is awaited before the answer; one that throws takes the call back: 503 `not_stored`. */
export interface Journal {
  created(id: string, record: SessionRecord): Promise<void>
  /** @param offset the layer's length before. keys and values are [H, tokens, d] and must be read before the promise settles. */
  appended(
    id: string,
    layer: number,
    offset: number,
    tokens: number,
    rows: { keys: TensorInput; values: TensorInput },
  ): Promise<void>
  truncated(id: string, length: number): Promise<void>
  removed(id: string): Promise<void>
  /** A session made of a snapshot or by a fork, as one safetensors file. A journal without it makes both 501. */
  restored?(id: string, record: SessionRecord, snapshot: ReadableStream<Uint8Array>): Promise<void>
}

/**
 * Where a host reads a body at less cost than `request.body` does: hands each chunk to `take` as it arrives, and resolves
 * behind the last one. Rejects, and reads no further, where the body breaks off, `take` throws or the signal fires.
 */
export type BodySource = (take: (chunk: Uint8Array<ArrayBuffer>) => void, signal: AbortSignal) => Promise<void>

/** What `createApp` takes. */
export interface AppOptions {
  /**
   * An engine, or how to open one: then the app opens it at the first request or `ready()`, owns it, and opens another
   * after a lost device. An engine handed in open stays yours to dispose of.
   */
  readonly engine: Engine | (() => Promise<Engine>)
  /** Tokens and whom they stand for, or `'off'`: then everybody is the tenant `''`. The map may change while the app runs. */
  readonly auth: { readonly tokens: ReadonlyMap<string, string> } | 'off'
  /** `GET /metrics` needs it; without it the route is not there unless auth is `'off'`. */
  readonly metricsToken?: string
  readonly limits?: Partial<Limits>
  /** What it throws is dropped. */
  readonly logger?: (entry: LogEntry) => void
  readonly journal?: Journal
  /** 128 random bits as base64url by default. */
  readonly newId?: (request: Request) => string
  /** hono's, of the runtime; without it the socket route answers 501. */
  readonly upgradeWebSocket?: UpgradeWebSocket
  /** The body by the bindings of a request (hono's `c.env`); undefined: `request.body`. */
  readonly readBody?: (env: unknown) => BodySource | undefined
  /** Sessions whose pipelines are compiled before `ready`. */
  readonly warm?: readonly SessionOptions[]
  /** Milliseconds between looks for expired sessions while there are sessions, by default 30,000; 0: only `sweep()` looks. */
  readonly sweepEvery?: number
}
