import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { Engine } from '../../sdk/engine.ts'
import { createOpenAi, type OpenAi, type OpenAiOptions } from '../../sdk/http/openai.ts'
import { loadModel, type Model } from '../../sdk/llm/index.ts'
import { editJson, filesOf, memorySource, needlePath } from '../llm/models.ts'
import { compileKernels } from '../support/kernels-wasm.ts'

/** Begins with `<bos>`, then every message; a chat has to begin with a user or the system. */
const TEMPLATE =
  "{% if messages[0].role == 'assistant' %}{{ raise_exception('no question') }}{% endif %}" +
  '{{ bos_token }} {% for message in messages %}{{ message.content }} {% endfor %}'

/** The needle model on Wasm, with a chat template. */
export async function openNeedle(): Promise<Model> {
  const files = await filesOf(needlePath)
  editJson(files, 'tokenizer_config.json', { chat_template: TEMPLATE })
  return loadModel({ engine: new Engine(createWasmBackend(compileKernels())), source: memorySource(files) })
}

/** Open sessions and allocated bytes of a model's engine. */
export function heldBy({ engine }: Model): { sessions: number; bytes: number } {
  const { sessions } = engine as unknown as { sessions: { open: ReadonlySet<unknown> } }
  return { sessions: sessions.open.size, bytes: engine.backend.allocated() }
}

/** An app of one model called `needle`. */
export function openApp(model: Model, options: Partial<OpenAiOptions> = {}): OpenAi {
  return createOpenAi({ models: { needle: model }, auth: 'off', ...options })
}

export const CHAT = '/v1/chat/completions'
export const TEXT = '/v1/completions'

/** A question that the model answers, and its answer. */
export const QUESTION =
  'the magic number of polar lantern is 6 6 8 2 . the calm otter is near the garden . recall the magic number of polar lantern is'
export const ANSWER = '6 6 8 2 .'

/** More tokens than any test waits for. */
export const ENDLESS = { prompt: QUESTION, max_tokens: 50_000, ignore_eos: true, stream: true }

/** POSTs fields beside the model's name. */
export async function ask(app: OpenAi, path: string, fields: object, init: RequestInit = {}): Promise<Response> {
  return app.request(path, { method: 'POST', body: JSON.stringify({ model: 'needle', ...fields }), ...init })
}

/** Some of a chunk or of a whole answer. */
export interface Told {
  readonly id: string
  readonly object: string
  readonly choices: {
    text?: string
    delta?: { role?: string; content?: string }
    message?: { role: string; content: string }
    finish_reason: string | null
  }[]
  readonly usage?: { prompt_tokens: number; completion_tokens: number; total_tokens: number } | null
  readonly error?: { message: string; type: string; param: string | null; code: string }
}

/** An answer that must be a whole one. */
export async function wholeOf(response: Response | Promise<Response>): Promise<Told> {
  const settled = await response
  if (settled.status !== 200) throw new Error(`${settled.status} ${await settled.text()}`)
  return (await settled.json()) as Told
}

/** The data of every event, the last one too. */
export async function eventsOf(response: Response | Promise<Response>): Promise<(Told | '[DONE]')[]> {
  const text = await (await response).text()
  const events = text.split('\n\n').filter((event) => event.startsWith('data: '))
  return events.map((event) => {
    const data = event.slice('data: '.length)
    return data === '[DONE]' ? data : (JSON.parse(data) as Told)
  })
}

/** The chunks of a stream that must end well. */
export async function chunksOf(response: Response | Promise<Response>): Promise<Told[]> {
  const events = await eventsOf(response)
  if (events.pop() !== '[DONE]') throw new Error(`no [DONE] behind ${JSON.stringify(events.at(-1))}`)
  return events as Told[]
}
