/**
 * The Wasm kernels on one core: `npm run bench:wasm -- [--quick] [--keys 8192,32768] [--dims 64,128] [--build-seconds 40]`.
 * Medians of runs that take turns in one process, recall@100 against the exact scan beside every time; a table here,
 * all figures in build/bench-wasm.json.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { compileKernels } from '../support/kernels-wasm.ts'
import { type Bed, K, makeBed } from './wasm-bed.ts'
import { NOISE, type TiledKeys, tiledKeys } from './wasm-data.ts'
import { buildGraph, type GraphIndex, Skipped } from './wasm-graphs.ts'
import { measureOthers } from './wasm-others.ts'
import { takeTurns } from './wasm-turns.ts'

const { values: args } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    keys: { type: 'string' },
    dims: { type: 'string' },
    'build-seconds': { type: 'string' },
  },
})
const numbers = (text: string | undefined, otherwise: number[]) => text?.split(',').map(Number) ?? otherwise
const sizes = numbers(args.keys, args.quick ? [8192, 131_072] : [8192, 32_768, 131_072, 524_288])
const dims = numbers(args.dims, args.quick ? [128] : [64, 128])
const rounds = args.quick ? 15 : 25
const asked = args.quick ? 8 : 24
const buildSeconds = Number(args['build-seconds'] ?? (args.quick ? 8 : 40))
/** Beyond this many keys the reference, whose time is linear, is left out. */
const REFERENCE_KEYS = 8192

const METHODS = [
  { name: 'signs β .02', coarse: 'signs', beta: 0.02 },
  { name: 'signs β .05', coarse: 'signs', beta: 0.05 },
  { name: 'collision β .1 ρ .2', coarse: 'collision', beta: 0.1 },
] as const

interface Row {
  readonly d: number
  readonly keys: number
  readonly method: string
  readonly recall: number
  readonly ms: number
  /** The first run of each turn, after the other methods have used the caches. */
  readonly coldMs: number
  readonly speedup: number
  readonly note: string
}

const capture = new URL('../../examples/data/needle-layer1.safetensors', import.meta.url)
const progress = (line: string) => process.stderr.write(`${line}\n`)
const started = performance.now()
const backend = createWasmBackend(compileKernels())
const rows: Row[] = []
const skipped = [`the reference above ${REFERENCE_KEYS} keys: its time is linear`]
const others: Record<string, unknown>[] = []

for (const d of dims) {
  const source = tiledKeys(capture, d)
  for (const keys of sizes) await measureRetrieval(source, keys)
  progress(`d ${d}: append, attend, prefill`)
  others.push(await measureOthers(backend, source, rounds))
}
report()

async function measureRetrieval(source: TiledKeys, keys: number): Promise<void> {
  progress(`d ${source.d}, ${keys} keys: encode`)
  const bed = await makeBed(backend, source, keys)
  const reference = createReferenceBackend()
  const slow = keys <= REFERENCE_KEYS ? await makeBed(reference, source, keys) : undefined
  const graphs = await graphsOf(source, keys)
  progress(`d ${source.d}, ${keys} keys: recall`)
  const positions = Array.from({ length: asked }, (_, i) => Math.floor((i * source.positions) / asked))
  const recalls = await recallsOf(bed, source, positions, graphs)
  const query = source.queries(positions[0])
  bed.ask(query)
  slow?.ask(query)
  const sum = meanQuery(query, source.d)
  progress(`d ${source.d}, ${keys} keys: time`)
  const times = takeTurns(rounds, {
    stream: () => backend.stream(bed.keys),
    scan: () => bed.scan(),
    exact: () => bed.exact(),
    ...Object.fromEntries(METHODS.map((m) => [m.name, () => bed.retrieve(m.coarse, m.beta)])),
    ...Object.fromEntries(graphs.map((g) => [g.name, () => g.search(sum)])),
  })
  if (slow) {
    const calls = Object.fromEntries(METHODS.map((m) => [`reference ${m.name}`, () => slow.retrieve(m.coarse, m.beta)]))
    Object.assign(times, takeTurns(3, { 'reference exact': () => slow.exact(), ...calls }))
    slow.free()
  }
  const rate = (name: string) => (keys * source.d * 4) / times[name].ms / 1e6
  const share = (100 * rate('scan')) / rate('stream')
  for (const [name, { ms, coldMs }] of Object.entries(times)) {
    if (name === 'stream' || name === 'scan') continue
    const graph = graphs.find((g) => g.name === name)
    const stream = `${rate('scan').toFixed(1)} of ${rate('stream').toFixed(1)} GB/s streamed (${share.toFixed(0)}%)`
    const note = name === 'exact' ? stream : graph ? `built in ${graph.buildSeconds.toFixed(1)} s` : ''
    const recall = recalls.get(name.replace('reference ', '')) ?? 1
    rows.push({ d: source.d, keys, method: name, recall, ms, coldMs, speedup: times.exact.ms / ms, note })
  }
  bed.free()
}

async function graphsOf(source: TiledKeys, keys: number): Promise<GraphIndex[]> {
  const graphs: GraphIndex[] = []
  for (const library of ['usearch', 'hnswlib-node'] as const)
    try {
      progress(`d ${source.d}, ${keys} keys: build ${library}`)
      graphs.push(await buildGraph(library, source, keys, buildSeconds))
    } catch (error) {
      if (!(error instanceof Skipped)) throw error
      skipped.push(`d ${source.d}, ${keys} keys, ${library}: ${error.message}`)
    }
  return graphs
}

/** Mean share of the exact top-100 that each method finds. */
async function recallsOf(bed: Bed, source: TiledKeys, positions: readonly number[], graphs: readonly GraphIndex[]) {
  const sums = new Map<string, number>()
  for (const p of positions) {
    const query = source.queries(p)
    bed.ask(query)
    bed.exact()
    const truth = new Set(await bed.top())
    const score = (name: string, found: Uint32Array) => {
      const share = found.reduce((hits, id) => hits + (truth.has(id) ? 1 : 0), 0) / K
      sums.set(name, (sums.get(name) ?? 0) + share / positions.length)
    }
    for (const m of METHODS) {
      bed.retrieve(m.coarse, m.beta)
      score(m.name, await bed.top())
    }
    for (const g of graphs) score(g.name, g.search(meanQuery(query, source.d)))
  }
  return sums
}

function meanQuery(queries: Float32Array, d: number): Float32Array {
  const sum = new Float32Array(d)
  queries.forEach((x, i) => {
    sum[i % d] += x
  })
  return sum
}

function report(): void {
  const seconds = (performance.now() - started) / 1000
  const machine = `${cpus()[0]?.model.trim()}, node ${process.version}`
  console.log(
    `${machine}; keys of a trained model tiled with ${NOISE} of their deviation as noise; K ${K}, one KV head\n`,
  )
  console.log('   d    keys  method                      recall@100       ms   × exact   cold ms')
  for (const r of rows)
    console.log(
      `${String(r.d).padStart(4)}${String(r.keys).padStart(8)}  ${r.method.padEnd(28)}${r.recall.toFixed(3).padStart(10)}` +
        `${r.ms.toFixed(3).padStart(9)}${r.speedup.toPrecision(3).padStart(10)}${r.coldMs.toFixed(3).padStart(10)}  ${r.note}`,
    )
  console.log()
  for (const other of others)
    console.log(
      Object.entries(other)
        .map(([k, v]) => `${k} ${v}`)
        .join('\n'),
      '\n',
    )
  for (const line of linearity()) console.log(line)
  for (const line of skipped) console.log(`left out: ${line}`)
  const folder = new URL('../../build/', import.meta.url)
  mkdirSync(folder, { recursive: true })
  const file = new URL('bench-wasm.json', folder)
  writeFileSync(file, JSON.stringify({ machine, noise: NOISE, k: K, seconds, rows, others, skipped }, null, 2))
  console.log(`\nbuild/bench-wasm.json written, ${seconds.toFixed(0)} s`)
}

/** Time a key at the longest zone against 32,768 keys, whose codes stay in the cache unless others took it. */
function linearity(): string[] {
  const most = Math.max(...sizes)
  return dims.flatMap((d) =>
    METHODS.flatMap(({ name }) => {
      const at = (keys: number) => rows.find((r) => r.d === d && r.keys === keys && r.method === name)
      const [short, long] = [at(32_768), at(most)]
      if (!short || !long || short === long) return []
      const ratio = (of: 'ms' | 'coldMs') => ((long[of] / most / short[of]) * 32_768).toFixed(2)
      return [
        `d ${d}, ${name}: a key at ${most} takes ${ratio('coldMs')} × its time at 32768 cold, ${ratio('ms')} × warm`,
      ]
    }),
  )
}
