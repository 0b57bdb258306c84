/**
 * What retrieval costs in answers: `npm run bench:quality -- [--quick] [--lengths 4096] [--k 32,100,512] [--seeds 1,2]
 * [--out FOLDER] [--add FILE] [--prefill webgpu]`. A trained model reads texts with magic numbers hidden in them by exact attention, then
 * answers 16 questions a text, every token of question and answer attending as each selector says, at equal rows.
 * Results go to FOLDER/quality.json (default build/) beside those of other lengths and seeds there, plots to
 * FOLDER/*.svg; `--add` takes in the texts of another such file;
 * `--prefill` reads the texts on a device of its own: a text of 16,384 tokens takes a CPU minutes. Exits 1 where ParisKV is more than one answer below
 * exact top-K.
 */
import { cpus } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { openModelFolder } from '../../adapters/node-files.ts'
import { progressBar } from '../../adapters/progress.ts'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import type { Device } from '../../sdk/index.ts'
import { loadModel } from '../../sdk/llm/index.ts'
import { compileKernels } from '../support/kernels-wasm.ts'
import { LaneEngine } from './baselines/engine.ts'
import { savePlot } from './plots.ts'
import { qualityPlot } from './quality-plot.ts'
import { readHere, readOn } from './quality-reader.ts'
import { cellsOf, mergeTexts, missed, readTexts, type TextResult, tableOf, writeJson } from './quality-results.ts'
import { EXACT, QUICK, SELECTORS } from './quality-selectors.ts'
import { tryText } from './quality-text.ts'

const { values: args } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    lengths: { type: 'string' },
    k: { type: 'string' },
    seeds: { type: 'string' },
    out: { type: 'string' },
    prefill: { type: 'string' },
    add: { type: 'string', multiple: true, default: [] },
  },
})
function numbers(text: string | undefined, otherwise: readonly number[]): readonly number[] {
  const given = text?.split(',').filter(Boolean).map(Number) ?? otherwise
  if (given.every((x) => Number.isInteger(x) && x > 0)) return given
  console.error(`${text}: not a list of whole numbers`)
  process.exit(2)
}

const lengths = numbers(args.lengths, args.quick ? [2048] : [4096])
const ks = numbers(args.k, args.quick ? [32, 100] : [32, 100, 512])
const seeds = numbers(args.seeds, args.quick ? [1] : [1, 2, 3, 4, 5, 6])
const out = args.out ?? fileURLToPath(new URL('../../build', import.meta.url))
const file = join(out, args.quick ? 'quality-quick.json' : 'quality.json')
const QUESTIONS = 16

const folder = new URL('../../examples/models/needle-9m/', import.meta.url)
const started = performance.now()
const fresh: TextResult[] = []
const engine = new LaneEngine(createWasmBackend(compileKernels()))
try {
  const source = await openModelFolder(fileURLToPath(folder))
  const model = await loadModel({ engine, source })
  const reader = args.prefill ? await readOn(args.prefill as Device, source) : readHere
  for (const tokens of lengths)
    for (const seed of seeds) {
      const label = `${tokens} · ${seed}`
      const scores = await tryText({
        engine,
        model,
        reader,
        folder,
        tokens,
        seed,
        questions: Math.min(QUESTIONS, Math.floor(tokens / 128)),
        ks,
        selectors: args.quick ? QUICK : SELECTORS,
        exact: true,
        reading: progressBar(`${label} read`),
        asking: progressBar(`${label} ask`),
      })
      fresh.push({ tokens, seed, scores })
      save()
    }
  await reader.dispose()
} finally {
  await engine.dispose()
}

const texts = save()
const cells = cellsOf(texts)
const bytes = (name: string) => [EXACT, ...SELECTORS].find((s) => s.name === name)?.bytes ?? Number.NaN
console.log(tableOf(cells, bytes))
console.log(`\n${file} written, ${((performance.now() - started) / 1000).toFixed(0)} s`)
if (!args.quick) await savePlot(join(out, 'quality.svg'), qualityPlot(cells))
const low = missed(args.quick ? cellsOf(fresh) : cells)
for (const cell of low) console.error(`more than one answer below exact top-K: ${cell}`)
if (low.length > 0) process.exitCode = 1

/** After every text, so that a broken run keeps what it has. */
function save(): TextResult[] {
  const earlier = args.quick ? [] : readTexts(file)
  const texts = mergeTexts([...earlier, ...args.add.flatMap(readTexts), ...fresh])
  const machine = `${cpus()[0]?.model.trim()}, node ${process.version}`
  writeJson(file, { machine, model: 'needle-9m', questions: QUESTIONS, cells: cellsOf(texts), texts })
  return texts
}
