// Rows on the host beside a GPU: fetches, decode steps and exact attention over the same keys.
// `npm run bench:offload -- [--quick] [--sizes=131072,1048576] [--pages=memory]`
import { writeFileSync } from 'node:fs'
import { sharedPages } from '../../adapters/shared-pages.ts'
import { memoryPages } from '../../sdk/cache/pages.ts'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import type { SplitStep } from '../../sdk/session/split-step.ts'
import { useSwiftShader } from '../support/swiftshader.ts'
import { openGpu } from './gpu-open.ts'
import { burner } from './gpu-time.ts'
import {
  appendOne,
  fetchTimes,
  fillTo,
  hitsBetween,
  median,
  queriesOf,
  SHAPE,
  timeOf,
  wallClock,
} from './offload-data.ts'

const quick = process.argv.includes('--quick')
const sizes = process.argv.find((arg) => arg.startsWith('--sizes='))?.slice(8)
const ALL_SIZES = quick ? [4096] : [131_072, 262_144, 524_288, 1_048_576]
const SIZES = sizes ? sizes.split(',').map(Number) : ALL_SIZES
const ROUNDS = quick ? 3 : 51
const { queryHeads: HQ, headDim: D } = SHAPE
const ms = (value: number) => value.toFixed(3)

if (quick && !process.env.VK_DRIVER_FILES) useSwiftShader()
const backend = await openGpu()
const pages = process.argv.includes('--pages=memory') ? memoryPages : sharedPages()
const engine = new Engine(backend, [], pages)
const burn = quick ? () => {} : await burner(backend.device, 3)
/** Brings the clocks up, which fall between short submits; the device has ended it when this does. */
const warmUp = async () => {
  const encoder = backend.device.createCommandEncoder()
  burn(encoder)
  backend.device.queue.submit([encoder.finish()])
  await backend.device.queue.onSubmittedWorkDone()
}
const [out, lse] = [4 * HQ * D, 4 * HQ].map((size) => backend.device.createBuffer({ size, usage: 0x80 | 0x04 | 0x08 }))
const asked = backend.device.createBuffer({ size: 4 * HQ * D, usage: 0x80 | 0x08 })
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
  const drawn = Array.from({ length: ROUNDS + 3 }, (_, i) => queriesOf(i, 16))
  const exact = await timeOf(ROUNDS, (i) => device.attendRange(0, { queries: drawn[i], ...range }), wallClock, warmUp)
  const steps = await stepTimes(device)
  console.log(
    `${size} keys: exact attention ${ms(exact)}; with rows on the device a step ${ms(steps.lasting)}, on the device alone ${ms(steps.fromGpu)}, in a row ${ms(steps.chain)}`,
  )
  results.push({ size, exact, device: steps })
  for (const k of [100, 2048]) {
    if (2 * k > size) continue
    const policy = { ...device.config.policy, k, offload: 'always' as const }
    const host = await device.fork({ policy })
    const same = k === device.config.policy.k ? await sameBytes(device, host) : 'not compared'
    const own = await stepTimes(host)
    const zone = host.stats().layers[0].zones.retrieval
    const cold = await fetchTimes(host, k, zone, 0, ROUNDS, wallClock, warmUp)
    const warm = await fetchTimes(host, k, zone, 0.6, ROUNDS, wallClock, warmUp)
    const { total, pages = 0, summary } = host.memory()
    console.log(
      `   k ${k}, rows on the host: step ${ms(own.lasting)} (${own.lastingHits} hits), on the device alone ${ms(own.fromGpu)} (${own.fromGpuHits}), ` +
        `in a row ${ms(own.chain)} (${own.chainHits}), ` +
        `topic anew ${ms(own.anew)} (${own.anewHits}); ids alone ${ms(own.ids)}; ` +
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
  const drawn = (lasting: number, first = 0) =>
    Array.from({ length: ROUNDS + 3 }, (_, i) => queriesOf(first + i, lasting))
  const time = (call: (i: number) => Promise<unknown>) => timeOf(ROUNDS, call, wallClock, warmUp)
  let mark = seen()
  const [fresh, topics, more] = [drawn(1, 1000), drawn(16), drawn(16, 320)]
  const anew = await time((i) => session.attend(0, { queries: fresh[i] }))
  const anewHits = hitsSince(mark)
  for (let i = 0; i < 8; i++) await appendOne(session)
  mark = seen()
  const lasting = await time((i) => session.attend(0, { queries: topics[i] }))
  const lastingHits = hitsSince(mark)
  mark = seen()
  const { queue } = backend.device
  // Both outputs and queries stay on the device, as a model's do; timed until the device is through.
  const fromGpu = await time(async (i) => {
    queue.writeBuffer(asked, 0, more[i] as Float32Array<ArrayBuffer>)
    await session.attendFrom(0, { queries: asked, output: out, lse })
    await queue.onSubmittedWorkDone()
  })
  const fromGpuHits = hitsSince(mark)
  const ids = await time((i) => session.retrieve(0, { queries: topics[i] }))
  const chains: number[] = []
  mark = seen()
  for (let i = -1; i < (quick ? 1 : 9); i++) {
    await warmUp()
    const time = await chain(session, drawn(16, 400 + 64 * i))
    if (i >= 0) chains.push(time)
  }
  return {
    anew,
    anewHits,
    lasting,
    lastingHits,
    fromGpu,
    fromGpuHits,
    ids,
    chain: median(chains),
    chainHits: hitsSince(mark),
  }
}

/** Milliseconds a step of many in a row, each recorded while the one before it runs, as the layers of a model are. */
async function chain(session: Session, queries: readonly Float32Array[]): Promise<number> {
  const { queue } = backend.device
  const steps = queries.length - 1
  let step: SplitStep | undefined
  const from = performance.now()
  for (let i = 0; i <= steps; i++) {
    const encoder = backend.device.createCommandEncoder()
    step?.encodeAttend(encoder, [{ output: out, lse }])
    const next = i < steps ? engine.encodeRetrieveBatch(encoder, [{ session, layer: 0, queries: asked }]) : undefined
    const commands = encoder.finish()
    await step?.fetch()
    queue.writeBuffer(asked, 0, queries[i] as Float32Array<ArrayBuffer>)
    queue.submit([commands])
    step?.release(true)
    step = next
  }
  await queue.onSubmittedWorkDone()
  return (performance.now() - from) / steps
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
