import type { Context, Model } from '../../sdk/llm/index.ts'
import { greedy } from '../../sdk/llm/sampler.ts'
import type { Tasks } from './drift-tasks.ts'
import { ZONES } from './quality-selectors.ts'

const POLICY = { ...ZONES, k: 100, update: 1, denseBelow: 0 } as const

/** Mean and largest KL divergence of next-token distributions, exact attention from ParisKV's, in nats. */
export interface Divergence {
  readonly positions: number
  readonly mean: number
  readonly largest: number
  /** Positions at which both find the same token likeliest. */
  readonly same: number
}

/** Both read one text exactly, then are given the same further tokens one by one. */
export async function divergence(
  model: Model,
  tasks: Tasks,
  { text, positions, progress }: { text: number; positions: number; progress: (done: number, total: number) => void },
): Promise<Divergence> {
  const { opening, questions } = tasks.text(text)
  const given = questions.flatMap(({ prompt, answer }) => [...prompt, ...answer])
  while (given.length < positions) given.push(...tasks.text(256).opening.slice(1))
  const full = await model.createContext({ capacity: text + positions, attention: 'full' })
  await full.prompt(opening)
  const paris = await full.fork({ policy: POLICY })
  let [sum, largest, same] = [0, 0, 0]
  for (let i = 0; i < positions; i++) {
    const step = [full, paris].map((context) => ({ context, id: given[i] }))
    const [exact, ours] = await model.decodeBatch(step)
    const kl = divergenceOf(exact, ours)
    sum += kl
    largest = Math.max(largest, kl)
    if (greedy(exact) === greedy(ours)) same++
    progress(i + 1, positions)
  }
  for (const context of [full, paris]) await context.dispose()
  return { positions, mean: sum / positions, largest, same }
}

/** Σ p (log p − log q) of the softmaxes of two rows of logits, in nats. */
export function divergenceOf(p: Float32Array, q: Float32Array): number {
  const [a, b] = [logSoftmax(p), logSoftmax(q)]
  return a.reduce((sum, x, i) => sum + Math.exp(x) * (x - b[i]), 0)
}

function logSoftmax(logits: Float32Array): Float64Array {
  const max = logits.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY)
  const log = max + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - max), 0))
  return Float64Array.from(logits, (x) => x - log)
}

/** Share of the tokens of copies that were foretold. */
export interface Copies {
  readonly tokens: number
  readonly exact: number
  readonly paris: number
}

/**
 * Copies one after the other in one context. Each token of the answer is given once it has been foretold, so that a slip
 * counts once and not for all that comes after it.
 */
export async function copies(
  model: Model,
  tasks: Tasks,
  { count, words, progress }: { count: number; words: number; progress: (done: number, total: number) => void },
): Promise<Copies> {
  const list = Array.from({ length: count }, () => tasks.copy(words))
  const capacity = 1 + count * (2 * words + 4)
  const full = await model.createContext({ capacity, attention: 'full' })
  const paris = await model.createContext({ capacity, policy: POLICY })
  const both = [full, paris]
  const right = [0, 0]
  let [done, tokens] = [0, 0]
  for (const [i, { prompt, answer }] of list.entries()) {
    let logits = await Promise.all(both.map((context) => read(model, context, i === 0, prompt)))
    for (const want of answer) {
      logits.forEach((row, side) => {
        if (greedy(row) === want) right[side]++
      })
      tokens++
      logits = await model.decodeBatch(both.map((context) => ({ context, id: want })))
      progress(++done, count * answer.length)
    }
  }
  for (const context of both) await context.dispose()
  return { tokens, exact: right[0] / tokens, paris: right[1] / tokens }
}

function read(model: Model, context: Context, first: boolean, prompt: readonly number[]): Promise<Float32Array> {
  return context.prompt(first ? [model.config.bos!, ...prompt] : prompt)
}
