import { z } from 'zod'
import { describe } from '../errors.ts'
import type { ChatMessage, GenerateOptions } from '../llm/index.ts'
import { parseJson } from './json.ts'
import { badField } from './openai-errors.ts'

/** A checked request. */
export interface Asked extends Pick<GenerateOptions, 'temperature' | 'topK' | 'topP' | 'stop' | 'ignoreEos'> {
  readonly model: string
  /** Of the three one. */
  readonly prompt: Pick<GenerateOptions, 'prompt' | 'messages' | 'ids'>
  /** u32. */
  readonly seed?: number
  readonly maxTokens?: number
  readonly stream: boolean
  /** Whether a stream tells the tokens used. */
  readonly usage: boolean
}

/** A field that is known, with the one value of it that asks for nothing. */
const only = <T extends string | number | boolean>(value: T) =>
  z.literal(value, { error: `${JSON.stringify(value)}, or nothing: no other is offered` }).nullish()

const none = z.null({ error: 'nothing: it is not offered' }).optional()
const emptyList = z.array(z.unknown()).max(0, { error: 'nothing: it is not offered' }).nullish()
const count = (from: number) => z.number().int().min(from).nullish()

const shared = {
  model: z.string().min(1),
  max_tokens: count(1),
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  top_k: count(0),
  seed: z.number().int().nullish(),
  stop: z
    .union([z.string().min(1), z.array(z.string().min(1)).max(4)], { error: 'a text or up to four, none empty' })
    .nullish(),
  ignore_eos: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z
    .strictObject({ include_usage: z.boolean().nullish(), include_obfuscation: z.boolean().nullish() })
    .nullish(),
  n: only(1),
  presence_penalty: only(0),
  frequency_penalty: only(0),
  logit_bias: z.strictObject({}, { error: 'nothing: it is not offered' }).nullish(),
  // Notes of the caller, which change no answer.
  user: z.string().nullish(),
  metadata: z.unknown().optional(),
  safety_identifier: z.string().nullish(),
  prompt_cache_key: z.string().nullish(),
  service_tier: z.string().nullish(),
}

const content = z.union([z.string(), z.array(z.strictObject({ type: z.literal('text'), text: z.string() })).min(1)], {
  error: 'a text or a list of { type: "text", text }',
})

const message = z.strictObject({
  role: z.enum(['system', 'developer', 'user', 'assistant']),
  content,
  name: z.string().nullish(),
  refusal: none,
  audio: none,
  tool_calls: emptyList,
  function_call: none,
  annotations: emptyList,
})

const chat = z.strictObject({
  ...shared,
  messages: z.array(message).min(1),
  max_completion_tokens: count(1),
  logprobs: only(false),
  top_logprobs: only(0),
  tools: emptyList,
  tool_choice: only('none'),
  parallel_tool_calls: z.boolean().nullish(),
  functions: emptyList,
  function_call: only('none'),
  response_format: z.strictObject({ type: z.literal('text') }).nullish(),
  modalities: z.array(z.literal('text')).max(1).nullish(),
  audio: none,
  prediction: none,
  store: only(false),
})

const text = z.strictObject({
  ...shared,
  prompt: z.union([z.string().min(1), z.array(z.int().min(0)).min(1), z.array(z.string().min(1)).length(1)], {
    error: 'one text or one list of token ids, not empty',
  }),
  best_of: only(1),
  echo: only(false),
  logprobs: none,
  suffix: only(''),
})

const FIX = 'Send one JSON object.'

/** A body of `POST /v1/chat/completions`. @throws ParisError `bad_body`, `bad_parameter` naming the field */
export function parseChat(bytes: Uint8Array): Asked {
  const body = check(chat, parseJson(bytes, FIX))
  const messages = body.messages.map(({ role, content }): ChatMessage => {
    const whole = typeof content === 'string' ? content : content.map((part) => part.text).join('')
    return { role: role === 'developer' ? 'system' : role, content: whole }
  })
  return {
    ...common(body),
    prompt: { messages },
    maxTokens: body.max_completion_tokens ?? body.max_tokens ?? undefined,
  }
}

/** A body of `POST /v1/completions`. @throws ParisError `bad_body`, `bad_parameter` naming the field */
export function parseText(bytes: Uint8Array): Asked {
  const { prompt, ...body } = check(text, parseJson(bytes, FIX))
  const given = typeof prompt === 'string' ? prompt : prompt[0]
  const own = typeof given === 'string' ? { prompt: given } : { ids: prompt as number[] }
  return { ...common(body), prompt: own, maxTokens: body.max_tokens ?? undefined }
}

function common(body: Omit<z.output<typeof text>, 'prompt'> | z.output<typeof chat>): Omit<Asked, 'prompt'> {
  const { model, temperature, top_p: topP, top_k: topK, seed, stop, ignore_eos: ignoreEos, stream } = body
  if (body.stream_options && !stream) throw badField('stream_options', 'a request without stream', 'stream: true')
  return {
    model,
    temperature: temperature ?? undefined,
    // The fewest tokens that hold no probability at all are the likeliest one.
    topP: topP === 0 ? Number.EPSILON : (topP ?? undefined),
    topK: topK ?? undefined,
    seed: seed == null ? undefined : Number(BigInt.asUintN(32, BigInt(seed))),
    stop: stop ?? undefined,
    ignoreEos: ignoreEos ?? undefined,
    stream: stream ?? false,
    usage: body.stream_options?.include_usage ?? false,
  }
}

function check<S extends z.ZodType>(schema: S, body: Record<string, unknown>): z.output<S> {
  const parsed = schema.safeParse(body)
  if (parsed.success) return parsed.data
  const issue = parsed.error.issues[0]
  const path = [...issue.path, ...(issue.code === 'unrecognized_keys' ? [issue.keys[0].slice(0, 80)] : [])]
  const got = path.reduce<unknown>((value, key) => (value as Record<PropertyKey, unknown> | undefined)?.[key], body)
  const want = issue.code === 'unrecognized_keys' ? 'a field that is known' : issue.message
  throw badField(path.join('.'), got === undefined ? 'nothing' : describe(got), want)
}
