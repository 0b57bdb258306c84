import type { Attention, Model } from '../llm/index.ts'
import type { AppOptions } from './options.ts'

/** What the models' app takes; refused beyond it at once. */
export interface OpenAiLimits {
  /** Bytes of one body, by default 4 MiB. 413 */
  readonly body: number
  /** Bytes of bodies held while they arrive, by default 64 MiB. 429 */
  readonly buffered: number
  /** Answers generated at once, by default 4. */
  readonly active: number
  /** Requests beside those that wait for their turn, by default 32. 429 */
  readonly queue: number
  /** Tokens of a prompt and its answer together, by default as many as the model was made for, which is the most. 400 */
  readonly context: number
  /** Bytes of all caches at once, by default 64 GiB. 503 */
  readonly bytes: number
  /** Milliseconds a request may take, its waiting too, by default 600,000. 503; in a stream, an error as its last event */
  readonly deadline: number
}

export const OPENAI_LIMITS: OpenAiLimits = {
  body: 4 * 2 ** 20,
  buffered: 64 * 2 ** 20,
  active: 4,
  queue: 32,
  context: Number.MAX_SAFE_INTEGER,
  bytes: 64 * 2 ** 30,
  deadline: 600_000,
}

/** What `createOpenAi` takes; `attention` and `policy` say how every cache is searched. */
export interface OpenAiOptions extends Pick<AppOptions, 'auth'>, Attention {
  /**
   * Models by the names that requests give, or how to load one: on an engine of its own, at the first request or
   * `ready()`, and again after a lost device. The app disposes of what it loaded, engine and all; a model handed in
   * loaded stays yours.
   */
  readonly models: Readonly<Record<string, Model | (() => Promise<Model>)>>
  readonly limits?: Partial<OpenAiLimits>
  /** Told of every answer when it begins; a second time, with the code, where a stream breaks off behind that. */
  readonly logger?: AppOptions['logger']
}
