import { type Context, encodePrompt, type GeneratedToken, generate, type Model } from '../llm/index.ts'
import { Admission } from './admission.ts'
import { orFired, withDeadline } from './call.ts'
import { DEFAULT_LIMITS } from './limits.ts'
import { notReady } from './openai-errors.ts'
import { Models } from './openai-models.ts'
import { OPENAI_LIMITS, type OpenAiLimits, type OpenAiOptions } from './openai-options.ts'
import type { Asked } from './openai-schema.ts'
import { Turns } from './openai-turns.ts'
import { Refusal } from './problem.ts'

/** A request that has its turn and its cache: what it generates. */
export interface Answering {
  /** As the model's engine reports itself. */
  readonly backend: string
  /** Seconds since 1970. */
  readonly created: number
  readonly promptTokens: number
  readonly tokens: AsyncIterable<GeneratedToken>
}

/** Prompt tokens between which other answers take their steps. */
const CHUNK = 512

/** Tokens of an answer whose length is not asked for. */
const DEFAULT_TOKENS = { messages: 1024, prompt: 16 } as const

/** Everything one app of models owns. */
export class OpenAiService {
  readonly limits: OpenAiLimits
  readonly admission: Admission
  readonly models: Models
  draining = false
  private readonly turns: Turns
  private readonly running = new Set<AbortController>()

  constructor(readonly options: OpenAiOptions) {
    const given = Object.entries(options.limits ?? {}).filter(([, value]) => value !== undefined)
    this.limits = { ...OPENAI_LIMITS, ...Object.fromEntries(given) }
    const { active, queue, buffered, bytes } = this.limits
    const unbounded = { sessions: Number.POSITIVE_INFINITY, sessionsPerTenant: Number.POSITIVE_INFINITY }
    const shares = { ...unbounded, bytes, bytesPerTenant: bytes }
    this.admission = new Admission({ ...DEFAULT_LIMITS, ...shares, buffered, queue: active + queue })
    this.models = new Models(options.models)
    this.turns = new Turns(active)
  }

  /** @throws ParisError `not_ready` */
  checkOpen(): void {
    if (this.draining) throw notReady('a server that is being stopped')
  }

  /**
   * Runs a request from its first byte to the last one of its answer.
   * @param task its signal fires when the client leaves, when `leave` is called, at the deadline and with `dispose`
   * @throws ParisError `too_many`, `deadline`, `aborted`, `not_ready`
   */
  async request<T>(client: AbortSignal, task: (signal: AbortSignal, leave: () => void) => Promise<T>): Promise<T> {
    return this.admission.request(async () => {
      const own = new AbortController()
      const leave = () => own.abort()
      client.addEventListener('abort', leave)
      if (client.aborted) leave()
      this.running.add(own)
      try {
        return await withDeadline(this.limits.deadline, own.signal, (signal) => task(signal, leave))
      } finally {
        this.running.delete(own)
        client.removeEventListener('abort', leave)
      }
    })
  }

  /**
   * Checks a prompt, waits for its turn, opens a cache, and frees it when `use` ends.
   * @throws ParisError `bad_prompt`, `capacity`, `out_of_memory`, and what `use` throws
   */
  async answer<T>(
    tenant: string,
    asked: Asked,
    signal: AbortSignal,
    use: (parts: Answering) => Promise<T>,
  ): Promise<T> {
    const { models, options } = this
    const model = await orFired(signal, models.get(asked.model))
    const { ids, count } = this.plan(model, asked)
    const { attention, policy } = options
    const opened = { capacity: ids.length + count, attention, policy }
    return this.turns.run(signal, async () => {
      const release = this.admission.reserve(tenant, model.estimate(opened).total)
      try {
        return await models.on(asked.model, model, async () => {
          const context = await model.createContext(opened, { signal })
          try {
            const tokens = tokensOf(model, context, { ids, count, asked, signal })
            const created = Math.floor(Date.now() / 1000)
            return await use({ backend: model.engine.info.backend, created, promptTokens: ids.length, tokens })
          } finally {
            await context.dispose()
          }
        })
      } finally {
        release()
      }
    })
  }

  /** Refuses new requests, and waits for those under way. */
  async drain(): Promise<void> {
    this.draining = true
    await this.admission.quiet()
  }

  /** Ends what is under way, and frees the models that were loaded here. */
  async dispose(): Promise<void> {
    this.draining = true
    for (const one of this.running) one.abort(notReady('a server that is being stopped'))
    await this.admission.quiet()
    await this.models.dispose()
  }

  /** Ids of the prompt, and how many tokens may follow. */
  private plan(model: Model, { prompt, maxTokens }: Asked): { ids: readonly number[]; count: number } {
    const ids = encodePrompt(model, prompt)
    const room = Math.min(this.limits.context, model.config.maxPositions)
    if (ids.length === 0) throw empty()
    if (ids.length >= room) throw tooLong(`${ids.length} tokens`, `fewer than ${room}`)
    if (maxTokens === undefined) {
      const most = prompt.messages ? DEFAULT_TOKENS.messages : DEFAULT_TOKENS.prompt
      return { ids, count: Math.min(most, room - ids.length) }
    }
    if (ids.length + maxTokens > room)
      throw tooLong(`${ids.length} tokens and ${maxTokens} more asked for`, `at most ${room} together`)
    return { ids, count: maxTokens }
  }
}

/** The prompt in pieces, so that other answers go on between them, then the answer. */
async function* tokensOf(
  model: Model,
  context: Context,
  parts: { ids: readonly number[]; count: number; asked: Asked; signal: AbortSignal },
): AsyncGenerator<GeneratedToken, void, void> {
  const { ids, count, asked, signal } = parts
  const last = Math.floor((ids.length - 1) / CHUNK) * CHUNK
  for (let at = 0; at < last; at += CHUNK) await context.prompt(ids.slice(at, at + CHUNK), { signal })
  const { temperature, topK, topP, stop, ignoreEos, seed = randomSeed() } = asked
  const sampling = { temperature, topK, topP, seed }
  yield* generate(model, { context, ids: ids.slice(last), maxTokens: count, stop, ignoreEos, signal, ...sampling })
}

function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]
}

function empty(): Refusal {
  return new Refusal('bad_prompt', {
    where: 'the prompt',
    got: 'no tokens',
    want: 'at least one',
    fix: 'Give a prompt that is not empty.',
  })
}

function tooLong(got: string, want: string): Refusal {
  return new Refusal('capacity', { where: 'the prompt', got, want, fix: 'Shorten the prompt or ask for fewer tokens.' })
}
