import { type CallOptions, Pace, type Progress } from '../calls.ts'
import { describe, ParisError, throwIfAborted } from '../errors.ts'
import type { ChatMessage } from './chat.ts'
import { checkCount, checkIds, emptyPrompt } from './checks.ts'
import { type Context, PROMPT_CHUNK } from './context.ts'
import type { ContextOptions, Model } from './model.ts'
import { Sampler, type SamplingOptions } from './sampler.ts'
import { StopStrings } from './stop.ts'
import { TextStream } from './text-stream.ts'

/** What `generate` takes. Of `prompt`, `messages` and `ids` one is given, or none to go on with `context`. */
export interface GenerateOptions extends SamplingOptions, Partial<ContextOptions>, Pick<CallOptions, 'signal'> {
  readonly prompt?: string
  readonly messages?: readonly ChatMessage[]
  readonly ids?: readonly number[]
  /**
   * Goes on from here, and stays open; without it a context is opened for the call and freed at its end. Beside it
   * `capacity`, `attention`, `policy` and `store` are refused.
   */
  readonly context?: Context
  /** Tokens generated at most, 1 or more; by default 256, as far as there is room. */
  readonly maxTokens?: number
  /** Texts that end the generation; they are not told themselves. */
  readonly stop?: string | readonly string[]
  /** Whether tokens that end a text are passed over, by default false. */
  readonly ignoreEos?: boolean
  /** Prompt tokens that go through the model at once, by default 512. */
  readonly chunk?: number
  /** Of the prompt, in tokens. */
  readonly onProgress?: (progress: Progress) => void
}

/** One generated token. */
export interface GeneratedToken {
  readonly id: number
  /** Text that is complete with this token: may be empty, and may hold what came before. Empty without a tokenizer. */
  readonly text: string
  /** Present on the last one: why it is the last. */
  readonly finish?: 'stop' | 'length'
}

/** Tokens that a context of its own has room for where nothing else is said. */
const DEFAULT_TOKENS = 256

/**
 * Generates text. Each token is told when it is chosen; the context then holds it, though the model sees it only with the
 * next one. Leaving the loop early frees what an own context held.
 * @throws ParisError `bad_prompt` for an empty or unknown prompt, `capacity` for one that leaves no room, `bad_config`,
 * `busy` where another call changes the given context meanwhile, `aborted`, `out_of_memory`, `disposed`, `device_lost`
 */
export async function* generate(model: Model, options: GenerateOptions): AsyncGenerator<GeneratedToken, void, void> {
  const where = 'generate'
  const { signal, context: given } = options
  throwIfAborted(signal, where)
  const sampler = new Sampler({ ...model.defaults, ...samplingOf(options) })
  const stops = new StopStrings(stopsOf(options.stop))
  const most = checkCount(options.maxTokens, DEFAULT_TOKENS, `${where}(maxTokens)`)
  checkCount(options.chunk, PROMPT_CHUNK, `${where}(chunk)`)
  checkContext(model, options)
  const ids = encodePrompt(model, options)
  const length = ids.length + (given?.tokens.length ?? 0)
  if (length === 0) throw emptyPrompt(`${where}(prompt)`)
  const room =
    given?.capacity ?? options.capacity ?? Math.max(model.config.maxPositions, length + (options.maxTokens ?? 0))
  if (length >= room) throw tooLong(length, room)
  const count = Math.min(most ?? DEFAULT_TOKENS, room - length)
  const capacity = options.capacity ?? length + count
  const context = given ?? (await model.createContext({ ...contextOptions(options), capacity }, { signal }))
  const text = new TextStream(model.tokenizer, context.tokens.concat(ids))
  const pace = new Pace(where, count, 'tokens', { signal })
  try {
    let logits = await begin(context, ids, options)
    for (let n = 1; ; n++) {
      const id = sampler.sample(logits)
      context.accept(id)
      const ended = model.config.eos.includes(id) && !options.ignoreEos
      let piece = ended ? '' : stops.push(text.push(id))
      const finish = ended || stops.stopped ? 'stop' : n === count ? 'length' : undefined
      if (finish) piece += stops.push(text.end()) + stops.end()
      yield finish ? { id, text: piece, finish } : { id, text: piece }
      if (finish) return
      await pace.step(n)
      logits = await context.step(undefined, { signal, ahead: n + 1 < count })
    }
  } finally {
    if (!given) await context.dispose()
  }
}

/** Puts the prompt through, or what the context has not seen yet; the last token once more where it has seen all. */
async function begin(context: Context, ids: readonly number[], options: GenerateOptions): Promise<Float32Array> {
  const { signal, onProgress, chunk } = options
  const waiting = context.tokens.length - context.length + ids.length
  if (waiting === 0) {
    await context.reopenLast()
    return context.step(undefined, { signal })
  }
  if (waiting === 1 && context.length > 0) return context.step(ids[0], { signal })
  return context.prompt(ids, { signal, onProgress, chunk })
}

/**
 * The token ids of a prompt; none where only a context is given.
 * @throws ParisError `bad_prompt`
 */
export function encodePrompt(
  model: Model,
  { prompt, messages, ids, context }: Pick<GenerateOptions, 'prompt' | 'messages' | 'ids' | 'context'>,
): readonly number[] {
  const where = 'generate'
  const given = [prompt, messages, ids].filter((one) => one !== undefined)
  if (given.length > 1 || (given.length === 0 && !context))
    throw new ParisError('bad_prompt', {
      where,
      got: given.length > 1 ? 'several of prompt, messages and ids' : 'no prompt',
      want: 'one of prompt, messages and ids',
      fix: 'Give one of them, or a context to go on with.',
    })
  if (given.length === 0) return []
  if (ids !== undefined) return checkIds(ids, model.config.vocabulary, where)
  const { tokenizer } = model
  if (!tokenizer)
    throw new ParisError('bad_prompt', {
      where,
      got: 'text for a model without tokenizer.json',
      want: 'ids',
      fix: 'Add tokenizer.json to the folder, or give token ids.',
    })
  if (prompt === '' && !context) throw emptyPrompt(`${where}(prompt)`)
  const special = (context?.tokens.length ?? 0) === 0
  const encoded = messages ? tokenizer.encodeChat(messages) : tokenizer.encode(prompt as string, { special })
  return checkIds(encoded, model.config.vocabulary, where)
}

function samplingOf({ temperature, topK, topP, seed }: GenerateOptions): SamplingOptions {
  return Object.fromEntries(
    Object.entries({ temperature, topK, topP, seed }).filter(([, value]) => value !== undefined),
  )
}

/** The rotation's seed stays its own: `seed` is that of sampling. */
function contextOptions({ attention, store, policy }: GenerateOptions): Omit<ContextOptions, 'capacity'> {
  return { attention, store, policy }
}

function stopsOf(stop: GenerateOptions['stop'] = []): readonly string[] {
  const all = typeof stop === 'string' ? [stop] : stop
  if (Array.isArray(all) && all.every((one) => typeof one === 'string' && one !== '')) return all
  throw new ParisError('bad_config', {
    where: 'generate(stop)',
    got: describe(Array.isArray(all) ? all.find((one) => typeof one !== 'string' || one === '') : all),
    want: 'texts that are not empty',
    fix: 'Leave stop out to end with the model.',
  })
}

/** @throws ParisError `bad_config` for a context of another model, and for options that only a new one takes */
function checkContext(model: Model, options: GenerateOptions): void {
  const { context } = options
  if (context === undefined) return
  if (!model.owns(context))
    throw new ParisError('bad_config', {
      where: 'generate(context)',
      got: context instanceof Object ? 'what is no context of this model' : describe(context),
      want: 'a context that this model created',
      fix: 'Open it with model.createContext of the same model.',
    })
  const beside = (['capacity', 'attention', 'policy', 'store'] as const).find((name) => options[name] !== undefined)
  if (beside)
    throw new ParisError('bad_config', {
      where: `generate(${beside})`,
      got: `${beside} beside a context`,
      want: 'one or the other',
      fix: 'Give it to model.createContext, or to context.fork.',
    })
}

function tooLong(length: number, capacity: number): ParisError {
  return new ParisError('capacity', {
    where: 'generate(prompt)',
    got: `${length} tokens`,
    want: `fewer than ${capacity}, so that one more has room`,
    fix: 'Shorten the prompt, or open the context with a larger capacity.',
  })
}
