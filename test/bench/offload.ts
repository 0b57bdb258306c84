/**
 * Rows on the host on one core, above the 4 GiB of linear memory: `npx tsx test/bench/offload.ts [--quick]`.
 * Times are of this process's own work, which a busy machine does not change much. 2 layers of 8 KV heads, d 128, bf16, up to 1,048,576 tokens.
 */
import { readFileSync } from 'node:fs'
import { freemem } from 'node:os'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { Engine } from '../../sdk/engine.ts'
import { compileKernels } from '../support/kernels-wasm.ts'
import { appendOne, fetchTimes, fillTo, hitsBetween, queriesOf, SHAPE, timeOf, workClock } from './offload-data.ts'

const quick = process.argv.includes('--quick')
const SIZES = quick ? [8192, 16_384, 32_768] : [131_072, 262_144, 524_288, 1_048_576]
const STEPS = quick ? 12 : 24
const LAYERS = 2
const GB = 1e9
const gb = (bytes: number) => `${(bytes / GB).toFixed(2)} GB`
const ms = (value: number) => value.toFixed(2).padStart(8)

const most = SIZES[SIZES.length - 1]
const engine = new Engine(createWasmBackend(compileKernels()))
const given = {
  ...SHAPE,
  layers: LAYERS,
  capacity: most + 4096,
  store: 'bf16' as const,
  policy: { offload: 'always' as const, hotRows: 8192 },
}
const use = engine.estimate(given)
const { kvHeads, headDim } = SHAPE
console.log(
  `rows: ${LAYERS} layers x ${most} tokens x ${kvHeads} heads x 2 x ${headDim} x 2 B = ${gb(LAYERS * most * kvHeads * 4 * headDim)}`,
)
console.log(
  `pages ${gb(use.pages!)} on the host; in linear memory: summary ${gb(use.summary)}, sink, window and staging ${gb(use.rows)}, hot rows ${gb(use.hot!)}, scratch ${gb(use.scratch)}`,
)
const available = memoryAvailable()
const need = 1.1 * use.total + 1 * GB
console.log(`needs ${gb(need)} with a tenth and 1 GB to spare; ${gb(available)} are free\n`)
if (available < need) {
  console.log('not run: too little memory is free')
  process.exit(1)
}

const session = await engine.createSession(given)
let step = 0
const attend = async (lasting: number) => {
  const queries = queriesOf(step++, lasting)
  for (let layer = 0; layer < LAYERS; layer++) await session.attend(layer, { queries })
}
for (const size of SIZES) {
  const [before, from] = [session.length(), workClock()]
  await fillTo(session, size)
  const fill = workClock() - from
  const seen = () => session.stats().offload!
  let mark = seen()
  const cold = await timeOf(STEPS, () => attend(1), workClock)
  const coldRate = hitsBetween(mark, seen())
  mark = seen()
  const token = await timeOf(
    STEPS,
    async () => {
      await appendOne(session)
      await attend(16)
    },
    workClock,
  )
  const warmRate = hitsBetween(mark, seen())
  const zone = session.stats().layers[0].zones.retrieval
  const fetches: string[] = []
  for (const [k, hits] of [
    [100, 0],
    [100, 0.6],
    [2048, 0],
  ] as const) {
    const fetched = await fetchTimes(session, Math.min(k, zone), zone, hits, STEPS, workClock)
    fetches.push(`k ${k} ${ms(fetched.enqueued)} (${fetched.hits} hits)`)
  }
  const { total, pages = 0 } = session.memory()
  console.log(
    `${String(size).padStart(8)} tokens: append ${((fill * 1e3) / (size - before) / LAYERS).toFixed(1)} us a token and layer; ` +
      `token of ${LAYERS} layers ${ms(token)} ms (${warmRate} hits), ${ms((token / size) * 1e6)} ns a key; ` +
      `steps alone, topic anew ${ms(cold)} ms (${coldRate} hits)`,
  )
  console.log(
    `         fetch, ms: ${fetches.join('; ')}; pages ${gb(pages)}, linear memory ${gb(total - pages)}, process ${gb(process.memoryUsage().rss)}`,
  )
}
await session.dispose()

function memoryAvailable(): number {
  try {
    const line = /MemAvailable:\s+(\d+) kB/.exec(readFileSync('/proc/meminfo', 'utf8'))
    if (line) return Number(line[1]) * 1024
  } catch {
    // Not Linux.
  }
  return freemem()
}
