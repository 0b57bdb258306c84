// Decoding with rows of the cache in host memory, beside rows on the device and full attention: a model of the shape of
// Qwen3-8B (random bf16 weights made on the device), and needle-9m. `npm run bench:llm:offload` bundles and runs it.
//   --sizes=262144,1048576   cache lengths, multiples of 16,384
//   --only=decode            of check, estimate, decode and needle
//   --layers=24              of the model at most; fewer where the host has no room for their rows
//   --host=GIB               memory of the host, where it tells less than there is
//   --pages=shared|memory    threads gather rows (the default), or the calling one
//   --model=DIR              of needle-9m
//   --quick                  for software GPUs
// With `OUT=DIR` it writes `DIR/gpu-llm-offload.json`.
import { openModelFolder } from '../../adapters/node-files.ts'
import { sharedPages } from '../../adapters/shared-pages.ts'
import { memoryPages } from '../../sdk/cache/pages.ts'
import { Engine } from '../../sdk/engine.ts'
import type { Context } from '../../sdk/llm/context.ts'
import { loadModel, type Model } from '../../sdk/llm/model.ts'
import type { Weights } from '../../sdk/llm/weights.ts'
import { useSwiftShader } from '../support/swiftshader.ts'
import { makeSigns } from './gpu-data.ts'
import { makeSources, openFilled, ROOM, type Sources } from './gpu-llm-cache.ts'
import { matricesOf } from './gpu-llm-decode.ts'
import { configOf, makeModel, shorten } from './gpu-llm-model.ts'
import { checkAway } from './gpu-llm-offload-check.ts'
import { Images, openAway } from './gpu-llm-pages.ts'
import { openGpu } from './gpu-open.ts'
import { given, Report } from './gpu-report.ts'
import { Stamps } from './gpu-stamps.ts'
import { gpuTimes } from './gpu-time.ts'
import { hostFree } from './host-memory.ts'
import { compareForks, openRead } from './offload-needle.ts'
import { TABLE_HEAD } from './offload-table.ts'
import { ALL_WAYS, attentionOf, compareWays, costOf, type Way } from './offload-ways.ts'

const quick = process.argv.includes('--quick')
const [CHUNK, SMALL] = [quick ? 512 : 16_384, 512]
const SIZES = given('sizes')?.split(',').map(Number) ?? (quick ? [2 * CHUNK] : [262_144, 1_048_576])
const PACE = quick ? { warm: 1, steps: 1, stamped: 1 } : { warm: 96, steps: 64, stamped: 16 }
const FORCED = quick ? 1 : 8
const POLICY = quick ? { denseBelow: 64, sink: 16, local: 32, update: 32, k: 32 } : {}
/** Bytes of the host that are free before anything is taken: what is given back later may stay with the process, for reuse. */
const FREE = hostFree(given('host') === undefined ? undefined : Number(given('host')) * 2 ** 30)
/** Bytes of the card that may be taken, and bytes of the host that are left. */
const MEMORY = quick ? 2 ** 30 : 136 * 2 ** 30
const SPARE = quick ? 2e9 : 14e9
const NEEDLE = quick ? 128 : 65_536
/** Encoders of a step are two a layer at most. */
const SLOTS = 2048

if (quick && !process.env.VK_DRIVER_FILES) useSwiftShader()
const out = new Report('gpu-llm-offload.json', given('only')?.split(','))
const gpu = await openGpu()
const engine = new Engine(gpu, [], given('pages') === 'memory' ? memoryPages : sharedPages(quick ? { threads: 1 } : {}))
const stamps = new Stamps(gpu.device, SLOTS)
const setting = { stamps, pace: PACE, forced: FORCED }
const rotation = await makeSigns(gpu)
out.add(`${gpu.description}; pages ${given('pages') ?? 'shared'}; ${gb(FREE)} of the host are free\n`, {
  ...{ device: gpu.description, pages: given('pages') ?? 'shared', hostFree: FREE, ...PACE },
})

await out.section('check', 'check', async () => {
  const sources = await makeSources(gpu, rotation, SMALL, 2)
  const told = await checkAway(engine, gpu, sources)
  sources.free()
  out.add(told, { check: told })
})
if (out.wants('estimate') || out.wants('decode')) {
  const { model, weights } = await makeModel(engine, gpu, configOf(quick))
  await out.section('estimate', `what ${model.config.layers} layers take`, async () => estimates(model))
  if (out.wants('decode')) await decodeAll(model, weights)
  await model.dispose()
}
await out.section('needle', `needle-9m, ${NEEDLE} tokens`, needle)
await engine.dispose()

/** Bytes by way at each size, and the first power of two at which a way no longer fits the card beside the weights. */
function estimates(model: Model): void {
  const { layers } = model.config
  for (const length of SIZES)
    for (const way of ALL_WAYS) {
      const cost = costOf(model, { capacity: length + ROOM, ...attentionOf(way, POLICY) })
      if (typeof cost === 'string') {
        out.add(`${length} ${way}: ${cost}`, { length, way, layers, refused: cost })
        continue
      }
      const { rows, summary, hot = 0, scratch, pages = 0 } = cost.use
      const device = cost.device + model.bytes
      const parts = `weights ${gb(model.bytes)} + rows ${gb(rows)} + codes ${gb(summary)} + hot rows ${gb(hot)} + scratch ${gb(scratch)}`
      const line = `${length} ${way.padEnd(6)}: ${parts} = ${gb(device)} of ${gb(MEMORY)}${pages ? `; pages of the host ${gb(pages)}` : ''}`
      out.add(line, { length, way, layers, device, weights: model.bytes, ...cost.use })
    }
  for (const way of ALL_WAYS) {
    const wanted = (log2: number) => {
      const cost = costOf(model, { capacity: 2 ** log2 + ROOM, ...attentionOf(way, POLICY) })
      return typeof cost === 'string' ? Number.POSITIVE_INFINITY : cost.device + model.bytes
    }
    let log2 = 10
    while (log2 < 27 && wanted(log2) <= MEMORY) log2++
    out.add(`${way} no longer fits the card at ${2 ** log2} tokens: ${gb(wanted(log2))}`, {
      ...{ way, layers, firstTooLong: 2 ** log2, bytes: wanted(log2) },
    })
  }
}

async function decodeAll(model: Model, weights: Weights): Promise<void> {
  const sources = await makeSources(gpu, rotation, CHUNK, Math.max(...SIZES) / CHUNK)
  const from = performance.now()
  const images = await Images.read(gpu, sources, Math.max(...SIZES))
  console.log(`${sources.chunks.length} chunks read back in ${((performance.now() - from) / 1e3).toFixed(1)} s\n`)
  const made = await matricesOf(gpu, model, weights, 1)
  const [head] = await gpuTimes(gpu, [made.head], quick ? 1 : 7)
  made.free()
  for (const length of SIZES)
    await out.section('decode', `${length} tokens`, async () => {
      globalThis.gc?.()
      const layers = layersFor(model, length, images.bytes)
      const some = layers < model.config.layers ? shorten(model, weights, layers) : model
      console.log(TABLE_HEAD)
      const open = (way: Way) => opened(some, way, length, { sources, images })
      await compareWays(out, some, { ...setting, head }, open)
      if (some !== model) await some.dispose()
    })
  sources.free()
}

/** As many layers as the host has room for the rows of. */
function layersFor(model: Model, length: number, images: number): number {
  const { layers } = model.config
  const cost = costOf(model, { capacity: length + ROOM, ...attentionOf('always', POLICY) })
  if (typeof cost === 'string') throw new Error(cost)
  const each = (cost.use.pages ?? 0) / layers
  const free = FREE - images
  const fit = Math.max(0, Math.floor((free - SPARE) / each))
  const found = Math.max(1, Math.min(layers, fit, Number(given('layers') ?? layers)))
  const line = `${layers} layers x ${gb(each)} = ${gb(layers * each)} of rows; ${gb(FREE)} of the host free, ${gb(images)} chunks, ${gb(SPARE)} left: ${fit} layers; ${found} are run`
  out.add(line, { length, each, free, fit, layers: found })
  return found
}

/** A filled context, or why there is none. */
async function opened(
  model: Model,
  way: Way,
  length: number,
  from: { readonly sources: Sources; readonly images: Images },
): Promise<Context | string> {
  const cost = costOf(model, { capacity: length + ROOM, ...attentionOf(way, POLICY) })
  if (typeof cost === 'string') return cost
  const { use, device } = cost
  const needed = device + gpu.allocated()
  const most = Math.floor((MEMORY - gpu.allocated()) / (device / model.config.layers))
  if (needed > MEMORY) {
    const line = `wants ${gb(device)} beside ${gb(gpu.allocated())}; the card has ${gb(MEMORY)}: not tried`
    return `${line}; --layers=${most} would fit`
  }
  const { pages = 0 } = use
  const free = FREE - from.images.bytes
  if (pages > 0 && pages > free) return `wants ${gb(pages)} of the host; ${gb(free)} are free: not tried`
  const options = { length, shift: 0, ...attentionOf(way, POLICY) }
  if (way !== 'always') return openFilled(model, gpu, from.sources, options)
  const start = performance.now()
  let told = start
  const passed = () => `${((performance.now() - start) / 1e3).toFixed(1)} s`
  const context = await openAway(model, gpu, from, {
    ...options,
    told: (layers) => {
      if (performance.now() - told < 5000) return
      told = performance.now()
      console.log(`   filled ${layers} of ${model.config.layers} layers in ${passed()}`)
    },
  })
  const seconds = (performance.now() - start) / 1e3
  out.add(
    `   filled ${gb(pages)} of pages in ${seconds.toFixed(1)} s, ${((seconds * 1e9) / pages).toFixed(2)} s a GB`,
    {
      ...{ length, pages, filled: seconds },
    },
  )
  return context
}

async function needle(): Promise<void> {
  const folder = given('model')
  if (!folder) {
    console.log('not run: give --model=DIR')
    return
  }
  const model = await loadModel({ engine, source: await openModelFolder(folder) })
  const from = performance.now()
  const base = await openRead(model, folder, NEEDLE, POLICY)
  const seconds = (performance.now() - from) / 1e3
  out.add(`read ${NEEDLE} tokens in ${seconds.toFixed(1)} s`, { model: 'needle-9m', length: NEEDLE, read: seconds })
  console.log(TABLE_HEAD)
  await compareForks(out, model, base, { ...setting, head: 0, policy: POLICY })
  await base.dispose()
  await model.dispose()
}

function gb(bytes: number): string {
  return `${(bytes / 1e9).toFixed(2)} GB`
}
