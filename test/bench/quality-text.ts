import { makeHaystack } from '../../examples/support/haystack.ts'
import type { Context, Model } from '../../sdk/llm/index.ts'
import { greedy } from '../../sdk/llm/sampler.ts'
import type { LaneEngine } from './baselines/engine.ts'
import { Lane } from './baselines/lane.ts'
import { type Rows, rowsOf } from './baselines/rows.ts'
import type { Reader } from './quality-reader.ts'
import { EXACT, type Selector, ZONES } from './quality-selectors.ts'

/** Answers of one selector about one text. */
export interface Score {
  readonly name: string
  /** 0 for exact attention. */
  readonly k: number
  readonly right: number
  readonly asked: number
  /** Rows that a query head attended to, mean over the steps. */
  readonly rows: number
}

/** What one text is tried with. */
export interface Trial {
  readonly engine: LaneEngine
  readonly model: Model
  readonly reader: Reader
  readonly folder: URL
  readonly tokens: number
  readonly seed: number
  readonly questions: number
  readonly ks: readonly number[]
  readonly selectors: readonly Selector[]
  /** Whether exact attention answers too. */
  readonly exact: boolean
  readonly reading: (done: number, total: number) => void
  readonly asking: (done: number, total: number) => void
}

/** A selector's context while it answers. */
interface Answerer {
  readonly name: string
  readonly k: number
  readonly context: Context
  readonly lane?: Lane
  right: number
}

const DIGITS = 4
/** Tokens of a question, its answer and the full stop. */
const TURN = 13

/** Reads one text with exact attention, then lets every selector answer the same questions from there. */
export async function tryText(trial: Trial): Promise<Score[]> {
  const { engine, model, tokens, questions, ks, selectors } = trial
  const { text, needles } = makeHaystack(trial.folder, tokens - 1, Math.floor(tokens / 128), trial.seed)
  const capacity = tokens + questions * TURN
  const base = await trial.reader.read(model, model.tokenizer!.encode(text), capacity, {
    onProgress: ({ done, total }) => trial.reading(done, total),
  })
  const asked = shuffled(needles, trial.seed).slice(0, questions)
  const rows = await rowsOf(base.session)
  const learned = learn(selectors, rows, model.config.headDim)
  const scores: Score[] = []
  for (const [round, k] of ks.entries()) {
    const answerers: Answerer[] = []
    if (trial.exact && round === 0)
      answerers.push({ name: EXACT.name, k: 0, context: await base.fork({ attention: 'full' }), right: 0 })
    for (const { name, policy, finder } of selectors) {
      const lane = finder && learned.get(name)!.fork(k)
      const context = await base.fork(policy ? { policy: { ...policy, k } } : { attention: 'full' })
      if (lane) engine.assign(context.session, lane)
      answerers.push({ name, k, context, lane, right: 0 })
    }
    for (const [i, { name, digits }] of asked.entries()) {
      await ask(model, answerers, name, digits)
      trial.asking(round * asked.length + i + 1, ks.length * asked.length)
    }
    for (const { name, k, context, lane, right } of answerers) {
      if (lane && lane.length !== context.length) throw new Error(`${name}: its lane missed tokens`)
      const sparse = ZONES.sink + ZONES.local + k
      scores.push({
        name,
        k,
        right,
        asked: asked.length,
        rows: Math.round(lane ? lane.meanRows : k ? sparse : context.length),
      })
      engine.assign(context.session, undefined)
      await context.dispose()
    }
  }
  await base.dispose()
  return scores
}

/** What each method makes of the prompt, once for all K. */
function learn(selectors: readonly Selector[], rows: Rows, d: number): Map<string, Lane> {
  const lanes = selectors.flatMap(({ name, finder }) =>
    finder ? [[name, Lane.over(finder, rows, d, ZONES, 0)] as const] : [],
  )
  return new Map(lanes)
}

/** One question to all: its tokens given, its answer by each one's own likeliest tokens. */
async function ask(model: Model, answerers: readonly Answerer[], name: string, digits: string): Promise<void> {
  const encode = (text: string) => model.tokenizer!.encode(text, { special: false })
  const step = (ids: readonly number[]) =>
    model.decodeBatch(answerers.map(({ context }, i) => ({ context, id: ids[i % ids.length] })))
  let logits: Float32Array[] = []
  for (const id of encode(`recall the magic number of ${name} is`)) logits = await step([id])
  const answers: number[][] = answerers.map(() => [])
  for (let n = 0; n < DIGITS; n++) {
    const next = logits.map(greedy)
    next.forEach((id, i) => answers[i].push(id))
    logits = await step(next)
  }
  await step(encode('.'))
  const want = encode(digits).join()
  answerers.forEach((answerer, i) => {
    if (answers[i].join() === want) answerer.right++
  })
}

/** Needles in an order of their own, the same for the same seed. */
function shuffled<T>(list: readonly T[], seed: number): T[] {
  const out = [...list]
  let state = seed * 2654435761
  for (let i = out.length - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    const j = state % (i + 1)
    ;[out[i], out[j]] = [out[j], out[i]]
  }
  return out
}
