// GPU times of every kernel, of retrieval and of whole decode steps beside what they must move.
// `npm run bench:gpu` bundles and runs it; `--quick` is for software GPUs.
import { writeFileSync } from 'node:fs'
import { denseDecode, freeSteps, makeSteps, type Policy, recallOf, type Step, stagesOf } from './gpu-chain.ts'
import { checkDense, checkPrompt, checkStep } from './gpu-check.ts'
import {
  DIM,
  encodeJob,
  GROUP,
  HEADS,
  type Layer,
  makeLayers,
  makeQueries,
  makeSigns,
  RECENT,
  SINK,
} from './gpu-data.ts'
import { openGpu } from './gpu-open.ts'
import { gpuTimes, wallTime } from './gpu-time.ts'

const quick = process.argv.includes('--quick')
const only = process.argv.find((arg) => arg.startsWith('--only='))?.slice(7)
const ROUNDS = quick ? 2 : 11
const sizes = process.argv.find((arg) => arg.startsWith('--sizes='))?.slice(8)
const ALL_SIZES = quick ? [2048, 4096] : [8192, 32_768, 131_072, 262_144, 524_288, 1_048_576]
const SIZES = sizes ? sizes.split(',').map(Number) : ALL_SIZES
const BATCH = quick ? 2048 : 131_072
const PEAK = 4.4e12

const results: object[] = []
const backend = await openGpu()
const rotation = await makeSigns(backend)
console.log(`${backend.description}; H ${HEADS}, G ${GROUP}, d ${DIM}, bf16 rows; times in ms, floor at 4.4 TB/s\n`)

await section('retrieve', retrieveSection)
await section('dense', denseSection)
await section('encode', encodeSection)
await section('batch', batchSection)
await section('layers', layersSection)
await section('prefill', prefillSection)
await section('upload', uploadSection)
backend.dispose()

/** Runs one part of the bench; what it printed stays when a later part fails. */
async function section(name: string, body: () => Promise<void>): Promise<void> {
  if (only && !only.split(',').includes(name)) return
  const from = performance.now()
  console.log(`== ${name}`)
  try {
    await body()
  } catch (error) {
    console.log(`${name} failed: ${error instanceof Error ? error.stack : error}`)
    results.push({ section: name, failed: String(error) })
    process.exitCode = 1
  }
  console.log(`   (${((performance.now() - from) / 1000).toFixed(1)} s)\n`)
  if (process.env.OUT) writeFileSync(`${process.env.OUT}/gpu.json`, JSON.stringify(results, null, 1))
}

/** One line of a part; a failure is printed and the next line goes on. */
async function attempt(body: () => Promise<void>): Promise<void> {
  try {
    await body()
  } catch (error) {
    report(`failed: ${error instanceof Error ? error.stack : error}`, { failed: String(error) })
    process.exitCode = 1
  }
}

function report(line: string, values: object): void {
  console.log(line)
  results.push(values)
}

function ms(value: number): string {
  return value.toFixed(4).padStart(8)
}

/** Milliseconds that the card's own bandwidth asks for. */
function floorOf(bytes: number): number {
  return (bytes / PEAK) * 1e3
}

/** Bytes that each stage must move, all sequences together. */
function bytesOf(steps: readonly Step[]): Record<string, number> {
  const sum = (f: (step: Step) => number) => steps.reduce((total, step) => total + f(step), 0)
  return {
    query: sum(() => HEADS * (GROUP + 3) * DIM * 4),
    coarse: sum(({ layer }) => HEADS * layer.count * (DIM / 8 + 2)),
    select: sum(({ layer, candidates }) => HEADS * (2 * layer.count + 4 * candidates)),
    rerank: sum(({ candidates }) => HEADS * candidates * (82 + 8)),
    topk: sum(({ candidates }) => HEADS * candidates * 4),
    attend: sum(({ policy }) => HEADS * (SINK + policy.k + RECENT) * DIM * 4),
    merge: sum(({ parts }) => parts * HEADS * GROUP * (DIM + 2) * 4),
  }
}

/** Checks one finished step, then times its stages, the retrieval and the whole step. */
async function measure(layers: readonly Layer[], policy: Policy, seed: number, recall: boolean) {
  const steps = await makeSteps(backend, layers, policy)
  for (const step of steps) {
    const queries = await makeQueries(backend, step.layer, seed)
    backend.write(step.buffers.queries, 0, new Uint8Array(queries.buffer))
  }
  const stages = stagesOf(backend, rotation, steps)
  const all = Object.values(stages)
  await backend.warm(() => all.map((stage) => stage()))
  for (const stage of all) stage()
  await checkStep(backend, steps[0], 0)
  await checkStep(backend, steps[steps.length - 1], HEADS - 1)
  const found = recall ? await recallOf(backend, steps[0]) : Number.NaN
  const times = await gpuTimes(backend, all, ROUNDS)
  const retrieval = () => all.slice(0, 5).map((stage) => stage())
  const whole = () => all.map((stage) => stage())
  // Stages timed one by one leave the histogram in doubt; a step of its own settles it, as steps in a row do.
  whole()
  await backend.read(steps[0].buffers.lse, 0, 4)
  const [retrieved, attended] = await gpuTimes(backend, [retrieval, whole], ROUNDS)
  const bytes = bytesOf(steps)
  const moved = (names: string[]) => names.reduce((sum, name) => sum + bytes[name], 0)
  const names = Object.keys(stages)
  const keys = layers[0].count
  const cells = names.map((name, i) => `${name}${ms(times[i])} /${floorOf(bytes[name]).toFixed(4)}`)
  const head = `${layers.length}x${String(keys).padEnd(8)} ${policy.coarse} ${policy.beta} k ${policy.k}`.padEnd(34)
  report(
    `${head} retrieval ${ms(retrieved)} /${floorOf(moved(names.slice(0, 5))).toFixed(4)}  step ${ms(attended)} /${floorOf(moved(names)).toFixed(4)}  recall@${policy.k} ${found.toFixed(3)}\n      ${cells.join('  ')}`,
    { sequences: layers.length, keys, ...policy, retrieved, attended, recall: found, names, times, bytes },
  )
  freeSteps(backend, steps)
}

async function retrieveSection(): Promise<void> {
  for (const count of SIZES) {
    const layers = await makeLayers(backend, rotation, [{ count, seed: 1000 + count, counts: true }])
    const long = count >= 30_000
    const k2 = Math.min(2048, count >> 1)
    const policies: Policy[] = [
      { coarse: 'signs', beta: long ? 0.05 : 0.1, k: 100 },
      { coarse: 'signs', beta: 0.02, k: 100 },
      { coarse: 'signs', beta: long ? 0.05 : 0.1, k: k2 },
      { coarse: 'collision', beta: long ? 0.1 : 0.2, rho: long ? 0.2 : 0.25, k: 100 },
    ]
    for (const policy of policies) await attempt(() => measure(layers, policy, count + policy.k, true))
    backend.free(layers.flatMap(({ all }) => all))
  }
}

async function denseSection(): Promise<void> {
  for (const count of SIZES) {
    const [layer] = await makeLayers(backend, rotation, [{ count, seed: 2000 + count }])
    const [step] = await makeSteps(backend, [layer], { coarse: 'signs', beta: 0.05, k: 100 })
    const queries = await makeQueries(backend, layer, count)
    backend.write(step.buffers.queries, 0, new Uint8Array(queries.buffer))
    const { attend, merge, job } = denseDecode(backend, step)
    attend()
    merge()
    if (count <= 32_768) await checkDense(backend, step, job.parts)
    const [both, first, second] = await gpuTimes(backend, [() => [attend(), merge()], attend, merge], ROUNDS)
    const bytes = HEADS * count * DIM * 4
    const share = (bytes / (both / 1e3) / PEAK) * 100
    report(
      `dense decode ${String(count).padEnd(8)} ${ms(both)} /${floorOf(bytes).toFixed(4)}  attend ${ms(first)} merge ${ms(second)}  ${share.toFixed(1)}% of peak, ${job.parts} parts`,
      { dense: count, both, first, second, share },
    )
    freeSteps(backend, [step])
    backend.free(layer.all)
  }
}

async function encodeSection(): Promise<void> {
  const cases = quick
    ? ([[2048, 'bf16', false]] as const)
    : ([
        [131_072, 'bf16', false],
        [524_288, 'bf16', false],
        [262_144, 'f32', false],
        [131_072, 'bf16', true],
      ] as const)
  for (const [count, dtype, counts] of cases) {
    const [layer] = await makeLayers(backend, rotation, [{ count, seed: 3000 + count, dtype, counts }])
    const block = { ...encodeJob(layer, rotation), count: 256, from: SINK + count - 256, at: count - 256 }
    const [time, update] = await gpuTimes(
      backend,
      [() => backend.encode([encodeJob(layer, rotation)]), () => backend.encode([block])],
      ROUNDS,
    )
    const keys = HEADS * count
    const bytes = keys * (DIM * (dtype === 'f32' ? 4 : 2) + 82)
    report(
      `encode ${dtype}${counts ? ' with counts' : ''} ${count} x ${HEADS} ${ms(time)} /${floorOf(bytes).toFixed(4)}  ${(keys / time / 1e6).toFixed(3)} billion keys/s; one block of 256 ${ms(update)}`,
      { encode: count, dtype, counts, time, update },
    )
    backend.free(layer.all)
  }
}

async function batchSection(): Promise<void> {
  const policy: Policy = { coarse: 'signs', beta: BATCH >= 30_000 ? 0.05 : 0.1, k: 100 }
  for (const sequences of quick ? [1, 2] : [1, 4, 8]) {
    const options = Array.from({ length: sequences }, (_, i) => ({ count: BATCH, seed: 4000 + i }))
    const layers = await makeLayers(backend, rotation, options)
    await measure(layers, policy, 40 + sequences, sequences === 1)
    backend.free(layers.flatMap(({ all }) => all))
  }
}

/** Wall time of a model's worth of layers recorded and submitted at once, one readback at the end. */
async function layersSection(): Promise<void> {
  const count = quick ? 2 : 36
  const options = Array.from({ length: count }, (_, i) => ({ count: BATCH, seed: 5000 + i }))
  const layers: Layer[] = []
  for (const option of options) layers.push(...(await makeLayers(backend, rotation, [option])))
  const policy: Policy = { coarse: 'signs', beta: BATCH >= 30_000 ? 0.05 : 0.1, k: 100 }
  const steps = await makeSteps(backend, layers, policy)
  const queries = await makeQueries(backend, layers[0], 5)
  const token = () => {
    for (const step of steps) {
      backend.write(step.buffers.queries, 0, new Uint8Array(queries.buffer))
      for (const stage of Object.values(stagesOf(backend, rotation, [step]))) stage()
    }
  }
  await backend.warm(token)
  let recorded = 0
  const wall = await wallTime(async () => {
    const from = performance.now()
    token()
    recorded = performance.now() - from
    return backend.read(steps[count - 1].buffers.output, 0, 4)
  }, ROUNDS)
  const [gpu] = await gpuTimes(backend, [token], ROUNDS)
  report(
    `${count} layers at ${BATCH}: wall ${ms(wall)}, ${ms(wall / count)} a layer; recording ${ms(recorded)}; GPU ${ms(gpu)}, ${ms(gpu / count)} a layer (cold caches)`,
    { layers: count, keys: BATCH, wall, recorded, gpu },
  )
  freeSteps(backend, steps)
  backend.free(layers.flatMap(({ all }) => all))
}

async function prefillSection(): Promise<void> {
  for (const tokens of quick ? [64] : [2048, 8192]) {
    const [layer] = await makeLayers(backend, rotation, [{ count: tokens, seed: 6000 + tokens }])
    const [queries, output, lse] = await backend.alloc(
      [DIM, DIM, 1].map((n) => ({ label: 'prompt', bytes: HEADS * GROUP * tokens * n * 4 })),
    )
    const host = Float32Array.from({ length: HEADS * GROUP * tokens * DIM }, (_, i) => Math.sin(i * 12.9898) * 1.5)
    backend.write(queries, 0, new Uint8Array(host.buffer))
    const { keys, values } = layer
    const common = { heads: HEADS, group: GROUP, scale: 1 / Math.sqrt(DIM) }
    const job = { queries, tokens, first: 0, keys, values, output, lse, ...common }
    backend.dense([job])
    await checkPrompt(backend, job)
    const [time] = await gpuTimes(backend, [() => backend.dense([job])], quick ? 1 : 3)
    const operations = 2 * HEADS * GROUP * tokens * tokens * DIM
    report(
      `prefill ${tokens}: ${ms(time)}, ${(operations / time / 1e9).toFixed(2)} TFLOP/s, ${((tokens / time) * 1e3).toFixed(0)} tokens/s a layer`,
      { prefill: tokens, time },
    )
    backend.free([queries, output, lse, ...layer.all])
  }
}

async function uploadSection(): Promise<void> {
  const bytes = quick ? 1 << 20 : 1 << 26
  const [buf] = await backend.alloc([{ label: 'upload', bytes }])
  const data = new Uint8Array(bytes).map((_, i) => i)
  const wall = await wallTime(async () => {
    backend.write(buf, 0, data)
    return backend.read(buf, 0, 4)
  }, 5)
  const trip = await wallTime(() => backend.read(buf, 0, 4096), ROUNDS)
  report(`upload ${bytes >> 20} MiB ${ms(wall)}, ${(bytes / wall / 1e6).toFixed(2)} GB/s; read of 4 KiB ${ms(trip)}`, {
    upload: bytes,
    wall,
    trip,
  })
  backend.free([buf])
}
