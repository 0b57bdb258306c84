import { parseArgs } from 'node:util'
import type { Device } from '../sdk/index.ts'
import { ParisError } from '../sdk/index.ts'
import { type Context, type ContextOptions, encodePrompt, generate, loadModel, type Model } from '../sdk/llm/index.ts'
import { badOption, parseCount } from './cli-values.ts'
import { createEngine } from './node.ts'
import { openModelFolder } from './node-files.ts'
import { progressBar } from './progress.ts'

const HELP = `Usage: pariskv generate --model DIR --prompt TEXT [options]

Generates text with a Hugging Face folder of a Llama, Qwen2 or Qwen3 model: the text on stdout, all else on stderr.

  --model <dir>          holds config.json, the safetensors files and tokenizer.json
  --prompt <text>        - reads it from stdin
  --chat                 takes the prompt as a user's message, by the model's chat template
  --max-tokens <n>       default 256
  --temperature <x>      0 takes the likeliest; default as generation_config.json says, else 0
  --top-k <n>  --top-p <x>  --seed <n>
  --stop <text>          ends the text; may be given again
  --ignore-eos           goes on where the model would end
  --attention <kind>     paris (default) or full
  --k <n>                keys retrieved a head, default 100
  --dense-below <n>      tokens below which attention is dense, default 2000
  --audit-every <n>      compares every n-th retrieval with the exact one, default 64; 0 never
  --capacity <n>         tokens of prompt and text together, by default as many as they are
  --device <name>        auto (default), webgpu, wasm or reference
  --help`

const TEXT = { type: 'string' } as const
const FLAG = { type: 'boolean' } as const
const OPTIONS = {
  model: TEXT,
  prompt: TEXT,
  chat: FLAG,
  'max-tokens': TEXT,
  temperature: TEXT,
  'top-k': TEXT,
  'top-p': TEXT,
  seed: TEXT,
  stop: { type: 'string', multiple: true },
  'ignore-eos': FLAG,
  attention: TEXT,
  k: TEXT,
  'dense-below': TEXT,
  'audit-every': TEXT,
  capacity: TEXT,
  device: TEXT,
  help: FLAG,
} as const

type Values = ReturnType<typeof parse>

const parse = (args: string[]) => parseArgs({ args, options: OPTIONS }).values

/** `pariskv generate`. @returns the exit status: 130 where SIGINT has ended it, 141 where the reader of stdout has gone */
export async function generateCommand(argv: string[]): Promise<number> {
  const values = parse(argv)
  if (values.help) {
    console.log(HELP)
    return 0
  }
  const folder = await openModelFolder(required(values, 'model'))
  const prompt = await promptOf(required(values, 'prompt'))
  const abort = new AbortController()
  const stop = () => abort.abort()
  let readerGone = false
  const onOutputError = (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    readerGone = true
    stop()
  }
  process.once('SIGINT', stop)
  process.stdout.on('error', onOutputError)
  const engine = await createEngine({ device: (values.device ?? 'auto') as Device })
  try {
    console.error(`backend ${engine.info.backend}: ${engine.info.description}`)
    const bar = progressBar('loading')
    const onProgress = ({ done, total }: { done: number; total: number }) => bar(done, total)
    const model = await loadModel({ engine, source: folder, signal: abort.signal, onProgress })
    await write(model, values, prompt, abort.signal)
    return 0
  } catch (error) {
    if (!(error instanceof ParisError) || error.code !== 'aborted') throw error
    if (readerGone) return 141
    console.error('\nstopped')
    return 130
  } finally {
    process.off('SIGINT', stop)
    await engine.dispose()
    process.stdout.off('error', onOutputError)
  }
}

async function write(model: Model, values: Values, prompt: string, signal: AbortSignal): Promise<void> {
  const ids = encodePrompt(model, values.chat ? { messages: [{ role: 'user', content: prompt }] } : { prompt })
  const maxTokens = count(values, 'max-tokens') ?? 256
  const options: ContextOptions = {
    capacity: count(values, 'capacity') ?? ids.length + maxTokens,
    attention: (values.attention ?? 'paris') as 'paris',
    policy: given({
      k: count(values, 'k'),
      denseBelow: count(values, 'dense-below', 0),
      auditEvery: count(values, 'audit-every', 0) ?? 64,
    }),
  }
  await model.warm(options)
  const context = await model.createContext(options)
  const bar = progressBar('prompt')
  const began = performance.now()
  let [first, tokens] = [began, 0]
  const sampling = { temperature: number(values, 'temperature'), topP: number(values, 'top-p') }
  for await (const { text } of generate(model, {
    context,
    ids,
    maxTokens,
    ...given({ ...sampling, topK: count(values, 'top-k', 0), seed: count(values, 'seed', 0) }),
    stop: values.stop,
    ignoreEos: values['ignore-eos'],
    signal,
    onProgress: ({ done, total }) => bar(done, total),
  })) {
    if (tokens++ === 0) first = performance.now()
    process.stdout.write(text)
  }
  process.stdout.write('\n')
  const prefill = (first - began) / 1000
  const decode = (performance.now() - first) / 1000
  await report(model, context, { prompt: ids.length, tokens, prefill, decode })
}

interface Times {
  readonly prompt: number
  readonly tokens: number
  /** Seconds to the first token, and from there to the last. */
  readonly prefill: number
  readonly decode: number
}

async function report(model: Model, context: Context, { prompt, tokens, prefill, decode }: Times): Promise<void> {
  const { recall, layers } = await context.stats()
  const { rows, summary, scratch } = context.memory()
  const speed = tokens > 1 ? `, ${((tokens - 1) / decode).toFixed(1)} tokens/s` : ''
  console.error(`prompt   ${prompt} tokens in ${prefill.toFixed(2)} s, ${(prompt / prefill).toFixed(0)} tokens/s`)
  console.error(`text     ${tokens} tokens in ${decode.toFixed(2)} s${speed}`)
  const { retrieval } = layers[0].zones
  if (recall.audits > 0)
    console.error(`recall   ${recall.mean.toFixed(3)} of the exact top keys, ${recall.audits} audits`)
  else console.error(`recall   not audited: ${retrieval} tokens in the retrieval zone`)
  const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`
  console.error(
    `memory   weights ${mib(model.bytes)}, keys and values ${mib(rows)}, summary ${mib(summary)}, working ${mib(scratch)}`,
  )
}

async function promptOf(text: string): Promise<string> {
  if (text !== '-') return text
  const parts: Uint8Array[] = []
  for await (const part of process.stdin) parts.push(part as Uint8Array)
  return Buffer.concat(parts).toString('utf8')
}

function required(values: Values, name: 'model' | 'prompt'): string {
  const value = values[name]
  if (value !== undefined) return value
  throw badOption(`generate --${name}`, 'nothing', 'a value')
}

type Numeric = 'max-tokens' | 'top-k' | 'seed' | 'k' | 'dense-below' | 'audit-every' | 'capacity'

function count(values: Values, name: Numeric, from = 1): number | undefined {
  const text = values[name]
  return text === undefined ? undefined : parseCount(`generate --${name}`, text, from)
}

function number(values: Values, name: 'temperature' | 'top-p'): number | undefined {
  const text = values[name]
  if (text === undefined) return undefined
  if (text.trim() !== '' && Number.isFinite(Number(text))) return Number(text)
  throw badOption(`generate --${name}`, JSON.stringify(text), 'a number')
}

/** The fields that are not undefined. */
function given<T extends object>(fields: T): T {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as T
}
