/**
 * A trained model reads a text of thousands of tokens with magic numbers hidden in it, then answers questions about them:
 * with exact attention over everything, and with ParisKV, from the same prompt.
 */
import { fileURLToPath } from 'node:url'
import { createEngine, summaryBytes } from 'pariskv'
import { type Context, generate, loadModel, type Model, openModelFolder } from 'pariskv/llm'
import { progressBar } from '../adapters/progress.ts'
import { makeHaystack, type Needle } from './support/haystack.ts'

const TOKENS = 3072
const NEEDLES = 24
const QUESTIONS = 12
/** Of the text: `npm run demo -- --seed 7` hides other numbers in another one. */
const SEED = Number(process.argv[process.argv.indexOf('--seed') + 1]) || 1

const folder = new URL('models/needle-9m/', import.meta.url)

/** What one way to attend gave. */
interface Run {
  readonly name: string
  readonly answers: string[]
  readonly stepMs: number
  readonly recall: number
}

/** Asks every question of one context; each is forgotten before the next. */
async function ask(model: Model, name: string, context: Context, needles: readonly Needle[]): Promise<Run> {
  const bar = progressBar(name)
  const answers: string[] = []
  const length = context.length
  let [steps, spent] = [0, 0]
  for (const { name: asked } of needles) {
    const question = model.tokenizer!.encode(` recall the magic number of ${asked} is`, { special: false })
    const start = performance.now()
    for (const id of question.slice(0, -1)) await context.step(id)
    context.accept(question.at(-1)!)
    let answer = ''
    for await (const { text } of generate(model, { context, maxTokens: 4, temperature: 0 })) answer += text
    spent += performance.now() - start
    steps += question.length + 3
    answers.push(answer.trim())
    await context.truncate(length)
    bar(answers.length, needles.length)
  }
  const { recall } = await context.stats()
  return { name, answers, stepMs: spent / steps, recall: recall.mean }
}

const engine = await createEngine()
try {
  console.log(`backend: ${engine.info.backend} (${engine.info.description})`)
  for (const { name, reason } of engine.info.passedOver) console.log(`  passed over ${name}: ${reason}`)
  const loading = progressBar('load')
  const model = await loadModel({
    engine,
    source: await openModelFolder(fileURLToPath(folder)),
    onProgress: ({ done, total }) => loading(done, total),
  })
  const { text, needles } = makeHaystack(folder, TOKENS - 1, NEEDLES, SEED)
  const ids = model.tokenizer!.encode(text)
  const paris = await model.createContext({ capacity: TOKENS + 64, policy: { auditEvery: 7 } })
  const reading = progressBar('read')
  const start = performance.now()
  await paris.prompt(ids, { onProgress: ({ done, total }) => reading(done, total) })
  const seconds = (performance.now() - start) / 1000
  console.log(`prompt: ${ids.length} tokens, ${needles.length} magic numbers, read in ${seconds.toFixed(1)} s`)
  const asked = needles.filter((_, i) => i % Math.floor(NEEDLES / QUESTIONS) === 1)
  const full = await paris.fork({ attention: 'full' })
  const exact = await ask(model, 'exact', full, asked)
  printTable(asked, [exact, await ask(model, 'ParisKV', paris, asked)], paris)
} finally {
  await engine.dispose()
}

function printTable(needles: readonly Needle[], runs: readonly Run[], context: Context): void {
  const right = (run: Run) => run.answers.filter((answer, i) => answer === needles[i].digits).length
  const line = (cells: readonly string[]) =>
    console.log(cells.map((cell, i) => cell.padEnd(i === 0 ? 34 : 14)).join(''))
  console.log('')
  line(['the magic number of', 'hidden', ...runs.map(({ name }) => name)])
  for (const [i, { name, digits, depth }] of needles.entries()) {
    const answers = runs.map(({ answers }) => (answers[i] === digits ? answers[i] : `${answers[i]} ✗`))
    line([`${name} (at ${Math.round(depth * 100)}%)`, digits, ...answers])
  }
  const { shape, policy } = context.config
  const [n, d] = [context.length, shape.headDim]
  const row = 4 * d
  const zone = n - policy.sink - policy.local - ((n - policy.sink) % policy.update)
  const rows = [n, n - zone + policy.k]
  const bytes = [n * row, rows[1] * row + zone * summaryBytes(shape.paddedDim)]
  const summary = (name: string, cells: readonly string[]) => line([name, '', ...cells])
  summary(
    'right',
    runs.map((run) => `${right(run)} of ${needles.length}`),
  )
  summary('recall of the 100 best keys', ['', runs[1].recall.toFixed(3)])
  summary('keys attended to, a head', rows.map(String))
  summary(
    'KiB read, a head and step',
    bytes.map((b) => (b / 1024).toFixed(0)),
  )
  summary(
    'ms a token',
    runs.map(({ stepMs }) => stepMs.toFixed(1)),
  )
}
