import { randomId } from './ids.ts'
import type { Asked } from './openai-schema.ts'
import type { Answering } from './openai-service.ts'

/** How the two routes say the same things. */
export interface Face {
  readonly id: string
  readonly object: string
  readonly chunk: string
  /** The choice of a whole answer. */
  whole(text: string, finish: string): object
  /** The choices of a stream: before the text, a piece of it, and its end. */
  readonly first?: object
  piece(text: string): object
  end(finish: string): object
}

export const CHAT: Face = {
  id: 'chatcmpl-',
  object: 'chat.completion',
  chunk: 'chat.completion.chunk',
  whole: (content, finish) => chatChoice({ message: { role: 'assistant', content, refusal: null } }, finish),
  first: chatChoice({ delta: { role: 'assistant', content: '' } }, null),
  piece: (content) => chatChoice({ delta: { content } }, null),
  end: (finish) => chatChoice({ delta: {} }, finish),
}

export const TEXT: Face = {
  id: 'cmpl-',
  object: 'text_completion',
  chunk: 'text_completion',
  whole: textChoice,
  piece: (text) => textChoice(text, null),
  end: (finish) => textChoice('', finish),
}

function chatChoice(said: object, finish: string | null): object {
  return { index: 0, ...said, logprobs: null, finish_reason: finish }
}

function textChoice(text: string, finish: string | null): object {
  return { index: 0, text, logprobs: null, finish_reason: finish }
}

/** A whole answer. */
export async function wholeAnswer(face: Face, asked: Asked, answering: Answering): Promise<object> {
  let [text, finish, count] = ['', 'length', 0]
  for await (const token of answering.tokens) {
    text += token.text
    count++
    if (token.finish) finish = token.finish
  }
  const head = headOf(face, face.object, asked, answering)
  return { ...head, choices: [face.whole(text, finish)], usage: usageOf(answering.promptTokens, count) }
}

/** A streamed answer, event by event; with `usage`, the last one tells it and no choice. */
export async function* answerEvents(
  face: Face,
  asked: Asked,
  answering: Answering,
): AsyncGenerator<object, void, void> {
  const head = { ...headOf(face, face.chunk, asked, answering), ...(asked.usage ? { usage: null } : {}) }
  let count = 0
  if (face.first) yield { ...head, choices: [face.first] }
  for await (const { text, finish } of answering.tokens) {
    count++
    if (text !== '') yield { ...head, choices: [face.piece(text)] }
    if (finish) yield { ...head, choices: [face.end(finish)] }
  }
  if (asked.usage) yield { ...head, choices: [], usage: usageOf(answering.promptTokens, count) }
}

function headOf(face: Face, object: string, { model }: Asked, { created, backend }: Answering) {
  return { id: face.id + randomId(), object, created, model, system_fingerprint: `pariskv-${backend}` }
}

function usageOf(prompt: number, completion: number) {
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion }
}
