/**
 * Recall on keys and queries captured from a trained model: `npm run bench:recall -- [--data DIR]`.
 * DIR (or PARISKV_CAPTURES) holds the full captures, needle-16k-layer1.safetensors and needle-16k-layer2.safetensors;
 * without it the cut in examples/data is measured. With the full captures, exits 1 when a required value is missed.
 */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { loadCapture, measureRecall, type Selector } from '../support/recall.ts'

const K = 100
const RHO = 0.2
const SEEDS = [1, 2, 3, 4, 5, 6, 7, 8]
const CUT = fileURLToPath(new URL('../../examples/data/needle-layer1.safetensors', import.meta.url))

const SELECTORS: readonly Selector[] = [
  { name: 'collision, ρ .2, 10%', coarse: 'collision', beta: 0.1 },
  { name: 'signs, 2%', coarse: 'signs', beta: 0.02 },
  { name: 'signs, 5%', coarse: 'signs', beta: 0.05 },
  { name: 'signs, 10%', coarse: 'signs', beta: 0.1 },
  { name: 'signs, 5%, normWeighted', coarse: 'signs', beta: 0.05, normWeighted: true },
  { name: 'signs, 5%, group max', coarse: 'signs', beta: 0.05, group: 'max' },
  { name: 'RSQ-IP, every key', coarse: 'signs', beta: 1 },
]

interface Source {
  readonly title: string
  readonly path: string
  /** Half-open. */
  readonly zone: readonly [number, number]
  readonly selectors: readonly Selector[]
  /** Least recall of the first selectors, in their order. */
  readonly required: readonly number[]
}

function sources(data: string | undefined): Source[] {
  if (!data) {
    // A short zone: the default takes a quarter of it as candidates.
    const selectors: Selector[] = [...SELECTORS, { name: 'signs, 25%', coarse: 'signs', beta: 0.25 }]
    return [{ title: 'layer 1 (cut)', path: CUT, zone: [16, 3584], required: [], selectors }]
  }
  const full = { zone: [4, 14_848] as const, selectors: SELECTORS }
  const path = (layer: number) => join(data, `needle-16k-layer${layer}.safetensors`)
  return [
    { ...full, title: 'layer 1', path: path(1), required: [0.89, 0.8, 0.905, 0.93] },
    { ...full, title: 'layer 2', path: path(2), required: [0.77, 0.67, 0.855, 0.905] },
  ]
}

/** Measures one capture and prints its table; false when a required value is missed. */
function report({ title, path, zone, required, selectors }: Source): boolean {
  const capture = loadCapture(path)
  const positions = Array.from({ length: Math.ceil(capture.positions / 5) }, (_, i) => 5 * i)
  const started = performance.now()
  const progress = (done: number, of: number) => {
    const { isTTY } = process.stderr
    if (!isTTY && done % positions.length > 0) return
    const seconds = ((performance.now() - started) / 1000).toFixed(0)
    const [start, end] = isTTY ? ['\r', done === of ? '\n' : ''] : ['', '\n']
    process.stderr.write(`${start}${title}: ${done}/${of} searches, ${seconds} s${end}`)
  }
  const trial = { capture, zone, k: K, rho: RHO, positions, seeds: SEEDS, selectors, progress }
  const recalls = measureRecall(trial)
  console.log(`\n${title}: tokens ${zone[0]}..${zone[1]} (end excluded), ${positions.length} positions`)
  console.log(`${'selector'.padEnd(26)}recall@${K}   spread over ${SEEDS.length} seeds   required`)
  let met = true
  recalls.forEach(({ mean, deviation }, i) => {
    const least = required[i]
    const missed = least !== undefined && mean < least
    if (missed) met = false
    const verdict = least === undefined ? '' : `${least.toFixed(3)}${missed ? '  MISSED' : ''}`
    const columns = [selectors[i].name.padEnd(26), mean.toFixed(4).padEnd(13), `±${deviation.toFixed(4)}`.padEnd(22)]
    console.log(`${columns.join('')}${verdict}`.trimEnd())
  })
  return met
}

const { values } = parseArgs({ options: { data: { type: 'string' } } })
const list = sources(values.data ?? process.env.PARISKV_CAPTURES)
const absent = list.find(({ path }) => !existsSync(path))
if (absent) {
  console.error(`${absent.path} is not there; give the folder of the captures with --data DIR`)
  process.exitCode = 2
} else if (!list.map(report).every(Boolean)) process.exitCode = 1
