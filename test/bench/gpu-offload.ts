// Rows on the host beside a GPU: fetches, decode steps and exact attention over the same keys.
// esbuild test/bench/gpu-offload.ts --bundle --platform=node --format=esm --external:webgpu --outfile=build/gpu-offload.mjs
// then: node build/gpu-offload.mjs [--quick] [--sizes=131072,1048576]
import { writeFileSync } from 'node:fs'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { openGpu } from './gpu-open.ts'
import { appendOne, fetchTimes, fillTo, hitsBetween, queriesOf, SHAPE, timeOf } from './offload-data.ts'

const quick = process.argv.includes('--quick')
const sizes = process.argv.find((arg) => arg.startsWith('--sizes='))?.slice(8)
const ALL_SIZES = quick ? [4096] : [131_072, 262_144, 524_288, 1_048_576]
const SIZES = sizes ? sizes.split(',').map(Number) : ALL_SIZES
const ROUNDS = quick ? 3 : 51
const ms = (value: number) => value.toFixed(3)

const backend = await openGpu()
const engine = new Engine(backend)
const results: object[] = []
console.log(
  `${backend.description}; H 8, G 4, d 128, bf16 rows; wall times in ms, queries in and output back included\n`,
)
for (const size of SIZES) {
  try {
    await measure(size)
  } catch (error) {
    console.log(`${size} failed: ${error instanceof Error ? error.stack : error}`)
    process.exitCode = 1
  }
  if (process.env.OUT) writeFileSync(`${process.env.OUT}/gpu-offload.json`, JSON.stringify(results, null, 1))
}
await engine.dispose()

async function measure(size: number): Promise<void> {
  const device = await engine.createSession({
    ...SHAPE,
    layers: 1,
    capacity: size + 1024,
    store: 'bf16',
    policy: { offload: 'never' },
  })
  await fillTo(device, size)
  const range = { from: 0, to: size }
  const exact = await timeOf(ROUNDS, (i) => device.attendRange(0, { queries: queriesOf(i, 16), ...range }))
  const steps = await stepTimes(device)
  console.log(`${size} keys: exact attention ${ms(exact)}; retrieval with rows on the device ${ms(steps.lasting)}`)
  results.push({ size, exact, device: steps })
  for (const k of [100, 2048]) {
    if (2 * k > size) continue
    const policy = { ...device.config.policy, k, offload: 'always' as const, hotRows: Math.max(8192, 4 * k) }
    const host = await device.fork({ policy })
    const same = k === device.config.policy.k ? await sameBytes(device, host) : 'not compared'
    const own = await stepTimes(host)
    const zone = host.stats().layers[0].zones.retrieval
    const cold = await fetchTimes(host, k, zone, 0, ROUNDS)
    const warm = await fetchTimes(host, k, zone, 0.6, ROUNDS)
    const { total, pages = 0, summary } = host.memory()
    console.log(
      `   k ${k}, rows on the host: step ${ms(own.lasting)} (${own.lastingHits} hits), topic anew ${ms(own.anew)} (${own.anewHits}); ` +
        `exact / step ${(exact / own.lasting).toFixed(1)}; fetch cold ${ms(cold.enqueued)}, landed ${ms(cold.landed)} ` +
        `(${cold.hits} hits); ${ms(warm.enqueued)}, landed ${ms(warm.landed)} (${warm.hits} hits); same bytes: ${same}`,
    )
    console.log(
      `   device ${(total - pages) / 1e6} MB of which summary ${summary / 1e6}; host ${pages / 1e6} MB; summary ${(summary / size / SHAPE.kvHeads).toFixed(1)} B a key`,
    )
    results.push({ size, k, own, cold, warm, same, memory: host.memory() })
    await host.dispose()
  }
  await device.dispose()
}

/** Steps of a topic that lasts, a token appended before each but outside the time; and of one anew at each. */
async function stepTimes(session: Session) {
  const seen = () => session.stats().offload ?? { hits: 0, misses: 0 }
  const hitsSince = (a: ReturnType<typeof seen>) => hitsBetween(a, seen())
  let mark = seen()
  const anew = await timeOf(ROUNDS, (i) => session.attend(0, { queries: queriesOf(1000 + i, 1) }))
  const anewHits = hitsSince(mark)
  for (let i = 0; i < 8; i++) await appendOne(session)
  mark = seen()
  const lasting = await timeOf(ROUNDS, (i) => session.attend(0, { queries: queriesOf(i, 16) }))
  return { anew, anewHits, lasting, lastingHits: hitsSince(mark) }
}

async function sameBytes(device: Session, host: Session): Promise<string> {
  for (let i = 0; i < 20; i++) {
    const queries = queriesOf(i, 4)
    const [a, b] = [await device.attend(0, { queries }), await host.attend(0, { queries })]
    const differ = (x: Float32Array, y: Float32Array) => x.some((v, j) => v !== y[j])
    if (!differ(a.output, b.output) && !differ(a.lse, b.lse)) continue
    process.exitCode = 1
    return `NO, at step ${i}`
  }
  return 'yes'
}
