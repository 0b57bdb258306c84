import { checkRoom } from '../cache/room.ts'
import { type CallOptions, type CallQueue, Pace } from '../calls.ts'
import type { PolicyOptions, SessionConfig } from '../config.ts'
import { describe, ParisError, throwIfAborted } from '../errors.ts'
import type { MemoryUse } from '../session/memory.ts'
import type { Session } from '../session/session.ts'
import { disposedError } from '../session/state.ts'
import type { SessionStats } from '../session/stats.ts'
import { checkCount, checkIds, emptyPrompt } from './checks.ts'
import { type Runner, takeBack } from './runner.ts'

/** How a context attends. */
export interface Attention {
  /** `paris` (default) retrieves as the policy says; `full` attends to every token. */
  readonly attention?: 'paris' | 'full'
  /** `normWeighted` is by default on for models without norms on their keys. */
  readonly policy?: PolicyOptions
}

/** What a context needs of its model. */
export interface ContextHost {
  readonly runner: Runner
  readonly queue: CallQueue
  readonly vocabulary: number
  /** The policy of a cache of that capacity. */
  policyOf(options: Attention, capacity: number): PolicyOptions
  /** A context over this session. @throws ParisError `disposed` where the model is; then the session is, too */
  adopt(session: Session, tokens: readonly number[]): Promise<Context>
  closed(context: Context): void
}

/** A context as it was: the tokens, and the cache of those that have been through the model. */
export interface ContextSnapshot {
  readonly tokens: readonly number[]
  /** See `Session.snapshot`. */
  readonly cache: ReadableStream<Uint8Array>
}

/** Tokens of a prompt that go through the model at once. */
export const PROMPT_CHUNK = 512

/** One sequence of a model: its tokens and their cache. Made by `Model.createContext`. Calls run in call order. */
export class Context {
  private readonly all: number[] = []
  private through = 0
  /** @internal Calls under way or waiting that change the tokens. */
  changing = 0

  /** @internal */
  constructor(
    /** @internal */ readonly host: ContextHost,
    /** @internal */ readonly session: Session,
    tokens: readonly number[] = [],
  ) {
    for (const id of tokens) this.all.push(id)
    this.through = session.length()
  }

  /** All tokens, those that have not been through the model last. */
  get tokens(): readonly number[] {
    return this.all
  }

  /** Tokens that have been through the model. */
  get length(): number {
    return this.through
  }

  /** How the cache is kept and searched, every default filled in. */
  get config(): SessionConfig {
    return this.session.config
  }

  get capacity(): number {
    return this.config.capacity
  }

  get disposed(): boolean {
    return this.session.disposed
  }

  /**
   * Adds a token that goes through the model with the next `prompt` or as the next `step`.
   * @throws ParisError `bad_prompt`; `busy` while a prompt, a step or a truncation of this context is under way
   */
  accept(id: number): void {
    const where = 'context.accept'
    const [token] = checkIds([id], this.host.vocabulary, where)
    if (this.changing > 0)
      throw new ParisError('busy', {
        where,
        got: 'a call under way that changes the tokens',
        want: 'a token between calls',
        fix: 'Await prompt, step and truncate first.',
      })
    this.all.push(token)
  }

  /**
   * Puts what was accepted and these tokens through the model, with exact causal attention, in chunks.
   * @param options tokens a chunk, 512 by default; an abort takes all of them back
   * @returns logits [V] after the last token
   * @throws ParisError `bad_prompt` for no tokens or ids beyond the vocabulary, `bad_config` for another chunk than a whole
   * number of at least 1, `capacity`, `aborted`, `disposed`, `device_lost`
   */
  async prompt(ids: readonly number[], options: CallOptions & { chunk?: number } = {}): Promise<Float32Array> {
    const where = 'context.prompt'
    const added = [...checkIds(ids, this.host.vocabulary, where)]
    const chunk = checkCount(options.chunk, PROMPT_CHUNK, `${where}(chunk)`) ?? PROMPT_CHUNK
    return this.change(where, options.signal, async () => {
      if (this.disposed) throw disposedError(where)
      const before = this.through
      const rest = [...this.all.slice(before), ...added]
      if (rest.length === 0) throw emptyPrompt(where)
      checkRoom(before, rest.length, this.capacity, where)
      const pace = new Pace(where, rest.length, 'tokens', options)
      let logits: Float32Array | undefined
      for (let at = 0; at < rest.length; at += chunk) {
        const part = rest.slice(at, at + chunk)
        const last = at + chunk >= rest.length
        logits = await this.host.runner.prompt(this.session, part, before + at, {
          logits: last,
          signal: options.signal,
        })
        await pace.step(at + part.length)
      }
      for (const id of added) this.all.push(id)
      this.through = this.all.length
      return logits!
    })
  }

  /**
   * One decode step of one token, which attends as the policy says.
   * @param id left out where one was accepted
   * @param options ahead: the next step will follow, so it may be prepared meanwhile
   * @returns logits [V] after it
   * @throws ParisError as `prompt`
   */
  async step(id?: number, options: { signal?: AbortSignal; ahead?: boolean } = {}): Promise<Float32Array> {
    const [logits] = await stepAll([{ context: this, id }], options)
    return logits
  }

  /** Forgets all tokens from `length` on. @throws ParisError `bad_length` */
  async truncate(length: number): Promise<void> {
    return this.change('context.truncate', undefined, async () => {
      if (length < this.through) await this.session.truncate(length)
      else if (!Number.isInteger(length) || length > this.all.length)
        throw new ParisError('bad_length', {
          where: 'context.truncate(length)',
          got: describe(length),
          want: `a whole number from 0 to ${this.all.length}`,
          fix: 'Truncation only shortens.',
        })
      this.all.length = length
      this.through = Math.min(this.through, length)
    })
  }

  /** @internal Takes the last token out of the cache: as one that was accepted, it goes through with the next step. */
  async reopenLast(): Promise<void> {
    return this.change('generate', undefined, async () => {
      if (this.through === 0 || this.through < this.all.length) return
      await this.session.truncate(this.through - 1)
      this.through--
    })
  }

  /** Describes the context as of the call; see `Session.snapshot`. */
  async snapshot(options: CallOptions = {}): Promise<ContextSnapshot> {
    return this.run('context.snapshot', options.signal, async () => {
      return { tokens: [...this.all], cache: this.session.snapshot(options) }
    })
  }

  /**
   * A second context with the same tokens; the two share nothing from here on.
   * @param options another way to attend for the copy: its prompt need not go through the model again
   * @throws ParisError `bad_config`, `out_of_memory`, `disposed`
   */
  async fork(options?: Attention): Promise<Context> {
    const policy = options && this.host.policyOf(options, this.capacity)
    return this.run('context.fork', undefined, async () => {
      return this.host.adopt(await this.session.fork({ policy }), this.all)
    })
  }

  /** Lengths, zones, calls and audited recall of the cache. */
  async stats(): Promise<SessionStats> {
    return this.run('context.stats', undefined, async () => this.session.stats())
  }

  /** Bytes of the cache. */
  memory(): MemoryUse {
    return this.session.memory()
  }

  /** Frees the cache once the calls made before have ended. May be called again. */
  async dispose(): Promise<void> {
    await this.host.queue.run(async () => {
      await this.host.runner.settle()
      await this.session.dispose()
    })
    this.host.closed(this)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose()
  }

  /** Inside the model's queue, with nothing prepared; a failure takes the cache back to where it was. */
  private run<T>(where: string, signal: AbortSignal | undefined, task: () => Promise<T>): Promise<T> {
    throwIfAborted(signal, where)
    return this.host.queue.run(async () => {
      throwIfAborted(signal, where)
      await this.host.runner.settle()
      try {
        return await task()
      } catch (error) {
        await this.back()
        throw error
      }
    })
  }

  /** `run` for what changes the tokens. */
  private async change<T>(where: string, signal: AbortSignal | undefined, task: () => Promise<T>): Promise<T> {
    this.changing++
    try {
      return await this.run(where, signal, task)
    } finally {
      this.changing--
    }
  }

  /** @internal Takes the cache back to the tokens that are known to have been through the model; see `takeBack`. */
  async back(): Promise<void> {
    await takeBack(this.session, this.through)
    if (this.disposed) this.host.closed(this)
  }

  /** @internal The token of a step. @throws ParisError `bad_prompt`, `capacity`, `disposed` */
  nextToken(id: number | undefined, where: string): number {
    if (this.disposed) throw disposedError(where)
    const rest = this.all.length - this.through
    if (rest + (id === undefined ? 0 : 1) !== 1)
      throw new ParisError('bad_prompt', {
        where,
        got: `${rest} accepted tokens${id === undefined ? '' : ' and one more'}`,
        want: 'one token a step',
        fix: 'Put several tokens through with context.prompt.',
      })
    checkRoom(this.through, 1, this.capacity, where)
    return id === undefined ? this.all[this.through] : checkIds([id], this.host.vocabulary, where)[0]
  }

  /** @internal */
  passed(id: number): void {
    this.all[this.through++] = id
  }
}

/**
 * One decode step of several contexts of one model together.
 * @returns logits [V] of each, in their order
 * @throws ParisError as `Context.step`, then nothing has changed
 */
export async function stepAll(
  items: readonly { context: Context; id?: number }[],
  { signal, ahead = false }: { signal?: AbortSignal; ahead?: boolean } = {},
): Promise<Float32Array[]> {
  const where = items.length === 1 ? 'context.step' : 'model.decodeBatch'
  throwIfAborted(signal, where)
  if (items.length === 0) return []
  const contexts = items.map(({ context }) => context)
  const { queue, runner } = contexts[0].host
  for (const context of contexts) context.changing++
  const stepped = queue.run(async () => {
    throwIfAborted(signal, where)
    const ids = items.map(({ context, id }) => context.nextToken(id, where))
    const sessions = contexts.map(({ session }) => session)
    const positions = contexts.map(({ length }) => length)
    try {
      const logits = await runner.step(sessions, ids, positions, { ahead, signal })
      contexts.forEach((context, t) => context.passed(ids[t]))
      return logits
    } catch (error) {
      await runner.settle().catch(() => {})
      for (const context of contexts) await context.back()
      throw error
    }
  })
  return stepped.finally(() => {
    for (const context of contexts) context.changing--
  })
}
