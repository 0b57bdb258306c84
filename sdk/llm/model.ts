import { type CallOptions, CallQueue } from '../calls.ts'
import type { PolicyOptions, SessionOptions } from '../config.ts'
import type { Dtype } from '../dtype.ts'
import type { Engine } from '../engine.ts'
import { describe, ParisError, throwIfAborted } from '../errors.ts'
import type { RestoreOptions } from '../session/restore.ts'
import { checkIds } from './checks.ts'
import { type ModelConfig, parseModelConfig } from './config.ts'
import { type Attention, Context, type ContextSnapshot, stepAll } from './context.ts'
import type { Decoder } from './decoder.ts'
import { GpuRunner } from './gpu-runner.ts'
import { HostRunner } from './host-runner.ts'
import type { Runner } from './runner.ts'
import { badModel, type ModelSource, readJson, readJsonIfThere } from './source.ts'
import { loadTokenizer, type Tokenizer } from './tokenizer.ts'
import { warmDecoder } from './warm.ts'
import { loadWeights, type Weights } from './weights.ts'
import { MAX_BATCH } from './workspace.ts'

/** How a context keeps and searches its cache. */
export interface ContextOptions extends Attention, Pick<SessionOptions, 'capacity' | 'seed' | 'store'> {}

/** What `loadModel` takes. */
export interface LoadOptions extends CallOptions {
  readonly engine: Engine
  readonly source: ModelSource
}

/** Sampling as generation_config.json proposes it. */
export interface GenerationDefaults {
  readonly temperature?: number
  readonly topK?: number
  readonly topP?: number
}

/** A decoder on an engine. Made by `loadModel`. */
export class Model {
  private readonly decoder: Decoder
  private readonly runner: Runner
  private readonly queue = new CallQueue()
  private readonly contexts = new Set<Context>()
  private closing: Promise<void> | undefined

  /** @internal */
  constructor(
    readonly engine: Engine,
    readonly config: ModelConfig,
    /** Undefined where the folder has no tokenizer.json: then prompts are token ids. */
    readonly tokenizer: Tokenizer | undefined,
    readonly defaults: GenerationDefaults,
    private readonly weights: Weights,
  ) {
    const { backend } = engine
    const decoder: Decoder = { backend, config, weights }
    this.decoder = decoder
    this.runner = backend.recorder ? new GpuRunner(engine, decoder, backend.recorder) : new HostRunner(engine, decoder)
  }

  /** Bytes of the weights on the backend. */
  get bytes(): number {
    return this.weights.bytes
  }

  /** How a cache is kept unless told otherwise: as the embedding's weights are. */
  get store(): Dtype {
    return this.weights.embedding.dtype
  }

  /**
   * Opens an empty context; its memory is taken at once.
   * @throws ParisError `bad_config`, `out_of_memory`, `disposed`
   */
  async createContext(options: ContextOptions, { signal }: Pick<CallOptions, 'signal'> = {}): Promise<Context> {
    this.checkOpen('model.createContext')
    const session = await this.engine.createSession(this.sessionOptions(options), { signal })
    return this.adopt(session, [], 'model.createContext')
  }

  /** @internal Whether a context, open or not, is of this model. */
  owns(context: unknown): boolean {
    return context instanceof Context && context.host.queue === this.queue
  }

  /**
   * Compiles ahead what contexts of these options use, so that their first prompt and their first token do not wait for
   * it; elsewhere than on a GPU nothing is to be done. A prompt's last piece of 2 to 32 tokens, and a batch, may have
   * something of their own to compile still.
   * @throws ParisError `bad_config`, `bad_k`, `out_of_memory`, `disposed`, `device_lost`
   */
  async warm(options: ContextOptions): Promise<void> {
    this.checkOpen('model.warm')
    const session = this.sessionOptions(options)
    await this.queue.run(async () => {
      this.checkOpen('model.warm')
      await Promise.all([warmDecoder(this.decoder), this.engine.warm(session)])
    })
  }

  /** Bytes that a context would hold. @throws ParisError `bad_config` */
  estimate(options: ContextOptions) {
    return this.engine.estimate(this.sessionOptions(options))
  }

  /**
   * Goes on where a context was when its snapshot was taken.
   * @throws ParisError as `Engine.restore`; `snapshot_mismatch` for tokens that are not the cache's, `bad_prompt`
   */
  async restoreContext({ tokens, cache }: ContextSnapshot, options: RestoreOptions = {}): Promise<Context> {
    const where = 'model.restoreContext'
    this.checkOpen(where)
    const { layers, queryHeads, kvHeads, headDim, vocabulary } = this.config
    checkIds(tokens, vocabulary, where)
    const expect = { layers, queryHeads, kvHeads, headDim, ...options.expect }
    const session = await this.engine.restore(cache, { ...options, expect })
    const lengths = session.stats().layers.map(({ length }) => length)
    if (lengths.every((length) => length === lengths[0]) && lengths[0] <= tokens.length)
      return this.adopt(session, tokens, where)
    await session.dispose()
    throw new ParisError('snapshot_mismatch', {
      where,
      got: `${tokens.length} tokens for a cache of ${Math.max(...lengths)}`,
      want: 'the tokens of the same snapshot',
      fix: 'Keep tokens and cache of one snapshot together.',
    })
  }

  /**
   * One decode step of several contexts together: the weights are read once for all of them.
   * @param items at most 64 contexts of this model, none twice
   * @returns logits [V] of each, in their order
   * @throws ParisError as `Context.step`; `bad_config` for other items. Then nothing has changed
   */
  async decodeBatch(
    items: readonly { readonly context: Context; readonly id?: number }[],
    options: { signal?: AbortSignal; ahead?: boolean } = {},
  ): Promise<Float32Array[]> {
    this.checkOpen('model.decodeBatch')
    const own = Array.isArray(items) && items.every((item) => this.contexts.has(item?.context))
    if (own && items.length <= MAX_BATCH && new Set(items.map(({ context }) => context)).size === items.length)
      return stepAll(items, options)
    throw new ParisError('bad_config', {
      where: 'model.decodeBatch(items)',
      got: own ? `${items.length} items, or a context twice` : describe(items),
      want: `at most ${MAX_BATCH} different open contexts of this model`,
      fix: 'Make smaller batches of contexts that this model created.',
    })
  }

  /**
   * Frees contexts, activations and weights once the calls made before have ended; those that would open a context are
   * refused with `disposed`. May be called again.
   */
  async dispose(): Promise<void> {
    this.closing ??= this.close()
    return this.closing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose()
  }

  private async close(): Promise<void> {
    for (const context of [...this.contexts]) await context.dispose()
    await this.queue.run(async () => {
      await this.runner.dispose()
      this.engine.backend.free(this.weights.buffers)
    })
  }

  /** @throws ParisError `disposed` where the model has been meanwhile; then the session is, too */
  private async adopt(session: Context['session'], tokens: readonly number[], where: string): Promise<Context> {
    const { queue, runner, contexts } = this
    if (this.closing) await session.dispose()
    this.checkOpen(where)
    const context = new Context(
      {
        queue,
        runner,
        vocabulary: this.config.vocabulary,
        policyOf: (options, capacity) => this.policyOf(options, capacity),
        adopt: (forked, all) => this.adopt(forked, all, 'context.fork'),
        closed: (context) => contexts.delete(context),
      },
      session,
      tokens,
    )
    contexts.add(context)
    return context
  }

  private sessionOptions(options: ContextOptions): SessionOptions {
    const { layers, queryHeads, kvHeads, headDim } = this.config
    const { capacity, seed, store = this.store } = options ?? {}
    const policy = this.policyOf(options ?? {}, capacity)
    return { layers, queryHeads, kvHeads, headDim, capacity, seed, store, policy }
  }

  private policyOf({ attention = 'paris', policy }: Attention, capacity: number): PolicyOptions {
    if (attention !== 'paris' && attention !== 'full')
      throw new ParisError('bad_config', {
        where: 'model.createContext(attention)',
        got: describe(attention),
        want: "'paris' or 'full'",
        fix: 'Leave it out for retrieval.',
      })
    const weighted = policy?.normWeighted ?? 'auto'
    if (attention === 'paris') return { ...policy, normWeighted: weighted === 'auto' ? !this.config.qkNorm : weighted }
    // With every token in the sink there is no zone to encode, and nothing is left to retrieval.
    const [sink, denseBelow] = [Math.min(capacity, 1 << 20), Math.min(capacity + 1, 1 << 28)]
    return { ...policy, normWeighted: false, sink, denseBelow }
  }

  private checkOpen(where: string): void {
    if (!this.closing) return
    throw new ParisError('disposed', {
      where,
      got: 'a disposed model',
      want: 'an open one',
      fix: 'Load the model again; dispose only after the last call.',
    })
  }
}

/**
 * Reads a Hugging Face folder (Llama, Qwen2, Qwen3; bf16, f16 or f32) onto an engine: config.json, safetensors files,
 * tokenizer.json, generation_config.json.
 * @param options progress in bytes of weights; an abort frees what was taken
 * @throws ParisError `bad_model` naming the file, `out_of_memory`, `aborted`
 */
export async function loadModel({ engine, source, ...call }: LoadOptions): Promise<Model> {
  throwIfAborted(call.signal, 'loadModel')
  const files = await source.list()
  const generation = await readJsonIfThere(source, 'generation_config.json', files)
  const config = parseModelConfig(await readJson(source, 'config.json'), generation)
  const defaults = defaultsOf(generation)
  const tokenizer = await loadTokenizer(source)
  const weights = await loadWeights(engine.backend, source, config, call)
  return new Model(engine, config, tokenizer, defaults, weights)
}

function defaultsOf(generation: Readonly<Record<string, unknown>> = {}): GenerationDefaults {
  if (generation.do_sample !== true) return {}
  const number = (name: string, otherwise: number | undefined, fits: (x: number) => boolean, want: string) => {
    const value = generation[name] ?? otherwise
    if (value === undefined || (typeof value === 'number' && fits(value))) return value
    const fix = 'Mend the field, or take the file from its source again.'
    throw badModel('generation_config.json', `${name} ${describe(value)}`, want, fix)
  }
  return {
    temperature: number('temperature', 1, (x) => x >= 0 && x <= 100, 'a number from 0 to 100'),
    topK: number('top_k', 50, (x) => Number.isSafeInteger(x) && x >= 0, 'a whole number; 0 draws among all'),
    topP: number('top_p', undefined, (x) => x > 0 && x <= 1, 'a number above 0, at most 1'),
  }
}
