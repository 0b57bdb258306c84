/**
 * Whether retrieval holds while a model writes: `npm run bench:drift -- [--quick] [--answers 10000] [--out FOLDER]
 * [--only recall,kl,copies]`. A trained model answers a stream of its own tasks: recall@100 in windows of 1,000 answer
 * tokens, beside codebooks that were learned of the first prompt. Then the divergence of its next-token distributions
 * from exact attention's, and four copies of 1,024 tokens in one context. Results go to FOLDER/drift.json (default
 * build/), the plot to FOLDER/drift.svg. Exits 1 where the last window's recall is more than a point below the first's,
 * or copies are more than half a point below exact attention's.
 */
import { existsSync, readFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { openModelFolder } from '../../adapters/node-files.ts'
import { progressBar } from '../../adapters/progress.ts'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { loadModel } from '../../sdk/llm/index.ts'
import { compileKernels } from '../support/kernels-wasm.ts'
import { type Copies, copies, type Divergence, divergence } from './drift-exact.ts'
import { driftPlot } from './drift-plot.ts'
import { runStream, WatchedEngine, type Window } from './drift-stream.ts'
import { Tasks } from './drift-tasks.ts'
import { savePlot } from './plots.ts'
import { writeJson } from './quality-results.ts'

const { values: args } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    answers: { type: 'string' },
    only: { type: 'string', default: 'recall,kl,copies' },
    out: { type: 'string' },
  },
})
const size = args.quick ? 200 : 1000
const windows = Math.max(2, Math.round(Number(args.answers ?? (args.quick ? 400 : 10_000)) / size))
const out = args.out ?? fileURLToPath(new URL('../../build', import.meta.url))
const file = join(out, args.quick ? 'drift-quick.json' : 'drift.json')
const folder = new URL('../../examples/models/needle-9m/', import.meta.url)
const asked = (part: string) => args.only.split(',').includes(part)

/** What is in the file; parts that were not asked for stay as they were. */
interface Results {
  windows?: Window[]
  kl?: Divergence
  copies?: Copies
}

const earlier: Results = existsSync(file) && !args.quick ? JSON.parse(readFileSync(file, 'utf8')) : {}
const results: Results = { windows: earlier.windows, kl: earlier.kl, copies: earlier.copies }
const engine = new WatchedEngine(createWasmBackend(compileKernels()))
try {
  const model = await loadModel({ engine, source: await openModelFolder(fileURLToPath(folder)) })
  const tasks = (seed: number) => new Tasks(model, folder, seed)
  if (asked('kl')) {
    const plan = args.quick ? { text: 1024, positions: 64 } : { text: 4096, positions: 512 }
    results.kl = await divergence(model, tasks(2), { ...plan, progress: progressBar('kl') })
    save()
  }
  if (asked('copies')) {
    const plan = args.quick ? { count: 2, words: 128 } : { count: 4, words: 1024 }
    results.copies = await copies(model, tasks(3), { ...plan, progress: progressBar('copies') })
    save()
  }
  if (asked('recall')) {
    const plan = { windows, size, opening: args.quick ? 1024 : 2048, every: 20, progress: progressBar('recall') }
    results.windows = await runStream(engine, model, tasks(1), plan)
    save()
  }
} finally {
  await engine.dispose()
}
report()
if (results.windows && !args.quick) await savePlot(join(out, 'drift.svg'), driftPlot(results.windows))

function save(): void {
  writeJson(file, { machine: `${cpus()[0]?.model.trim()}, node ${process.version}`, model: 'needle-9m', ...results })
}

function report(): void {
  const { windows, kl, copies } = results
  const percent = (share: number) => `${(100 * share).toFixed(2)}%`
  if (kl)
    console.log(
      `KL of next-token distributions, ParisKV against exact, ${kl.positions} positions: mean ${kl.mean.toExponential(2)}, ` +
        `largest ${kl.largest.toExponential(2)} nats; likeliest token the same at ${kl.same}`,
    )
  if (copies) {
    console.log(
      `copies, ${copies.tokens} tokens right: exact ${percent(copies.exact)}, ParisKV ${percent(copies.paris)}`,
    )
    if (copies.paris < copies.exact - 0.005) fail('copies are more than half a point below exact attention')
  }
  if (!windows) return
  const names = Object.keys(windows[0].recall)
  const line = (cells: readonly string[]) => console.log(cells.map((cell) => cell.padStart(28)).join(''))
  line(['recall@100, answer tokens', ...names])
  for (const [w, { recall, answered }] of windows.entries())
    line([String((w + 1) * answered), ...names.map((name) => recall[name].toFixed(4))])
  const right = windows.reduce((sum, window) => sum + window.right, 0)
  const total = windows.reduce((sum, { answered }) => sum + answered, 0)
  console.log(`answer tokens right: ${right} of ${total}`)
  if (windows.at(-1)!.recall[names[0]] < windows[0].recall[names[0]] - 0.01) fail('recall fell by more than a point')
}

function fail(reason: string): void {
  console.error(reason)
  process.exitCode = 1
}
