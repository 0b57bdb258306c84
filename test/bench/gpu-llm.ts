// Decoding with a model of the shape of Qwen3-8B (random bf16 weights made on the device) over long caches: ParisKV
// beside our own full attention. `npm run bench:llm` bundles and runs it; `--quick` is for software GPUs,
// `--sizes=131072,262144` takes these cache lengths, multiples of 16,384, `--only=lengths` one of check, matrices, lengths
// and batches. With `OUT=DIR` it writes `DIR/gpu-llm.json`.
import { Engine } from '../../sdk/engine.ts'
import type { Context } from '../../sdk/llm/context.ts'
import { useSwiftShader } from '../support/swiftshader.ts'
import { makeSigns } from './gpu-data.ts'
import { makeSources, openFilled, ROOM, type Sources } from './gpu-llm-cache.ts'
import { auditRecall, checkTwin } from './gpu-llm-check.ts'
import { attentionOf, type Decoded, decode, matricesOf } from './gpu-llm-decode.ts'
import { configOf, makeModel } from './gpu-llm-model.ts'
import { openGpu } from './gpu-open.ts'
import { given, Report } from './gpu-report.ts'
import { Stamps } from './gpu-stamps.ts'
import { gpuTimes } from './gpu-time.ts'

type Way = 'paris' | 'full'
const WAYS = ['full', 'paris'] as const
const quick = process.argv.includes('--quick')
const [CHUNK, SMALL] = [quick ? 1504 : 16_384, 1504]
const ALL_SIZES = quick ? [2 * CHUNK] : [16_384, 131_072, 262_144]
const SIZES = given('sizes')?.split(',').map(Number) ?? ALL_SIZES
const BATCHES = quick ? [1] : [1, 2, 4, 8]
const BATCHED = quick ? [] : SIZES.filter((length) => length <= 131_072)
const PACE = quick ? { warm: 1, steps: 2 } : { warm: 96, steps: 64 }
const ROUNDS = quick ? 1 : 7
/** Bytes of the card that may be taken; bytes a second that it reads. */
const MEMORY = quick ? 2 ** 30 : 136 * 2 ** 30
const PEAK = 4.4e12
/** How many times as fast as full attention decoding is to be, by tokens. */
const GOALS: Readonly<Record<number, number>> = { 131072: 1.25, 262144: 1.8 }

if (quick && !process.env.VK_DRIVER_FILES) useSwiftShader()
const out = new Report('gpu-llm.json', given('only')?.split(','))
const gpu = await openGpu()
const engine = new Engine(gpu)
const stamps = new Stamps(gpu.device, 8 * PACE.steps)
const rotation = await makeSigns(gpu)

await out.section('check', 'check', async () => {
  const sources = await makeSources(gpu, rotation, SMALL, 2)
  const { paris, full, apart } = await checkTwin(engine, gpu, sources)
  sources.free()
  const cells = `${paris.toExponential(1)} with paris, ${full.toExponential(1)} with full attention`
  out.add(`small twin against the reference: logits off by ${cells}; the two ${apart.toFixed(2)} apart`, {
    check: { paris, full, apart },
  })
})

const config = configOf(quick)
const { model, weights } = await makeModel(engine, gpu, config)
const { layers } = config
/** Bytes of a token's keys and values in a layer. */
const ROW = config.kvHeads * config.headDim * 2 * 2
out.add(`${gpu.description}; ${(model.bytes / 1e9).toFixed(2)} GB of weights, ${layers} layers; times in ms\n`, {
  ...{ device: gpu.description, weights: model.bytes, layers, ...PACE },
})
const sources: Sources = await makeSources(gpu, rotation, CHUNK, Math.max(...SIZES) / CHUNK)

/** Milliseconds of the matrices by tokens a step. */
const matrices = new Map<number, { layers: number; head: number }>()
await out.section('matrices', 'matrices', async () => {
  for (const tokens of BATCHES) {
    const made = await matricesOf(gpu, model, weights, tokens)
    const [inLayers, head] = await gpuTimes(gpu, [made.layers, made.head], ROUNDS)
    made.free()
    matrices.set(tokens, { layers: inLayers, head })
    // The embedding is looked up, not read through.
    const bytes = model.bytes - weights.embedding.buf.bytes
    const share = bytes / ((inLayers + head) / 1e3) / PEAK
    out.add(`${tokens} tokens: layers ${ms(inLayers)}, vocabulary ${ms(head)}, ${percent(share)} of 4.4 TB/s`, {
      ...{ matrices: tokens, layers: inLayers, head, share },
    })
  }
})

for (const length of SIZES) await out.section('lengths', `${length} tokens`, () => compare(length))
for (const length of BATCHED) await out.section('batches', `batches at ${length}`, () => batches(length))
await model.dispose()
await engine.dispose()

/** Both ways at one length, batch 1. */
async function compare(length: number): Promise<void> {
  const found: Partial<Record<Way, Decoded>> = {}
  for (const way of WAYS) {
    const contexts = await open(length, way, 1)
    try {
      found[way] = await measure(length, way, contexts)
      if (way === 'paris') {
        const recall = await auditRecall(gpu, sources, contexts[0], layers >> 1)
        out.add(`   recall@100 of a retrieval ${recall.toFixed(3)}`, { length, recall })
      }
    } finally {
      for (const context of contexts) await context.dispose()
    }
  }
  const { full, paris } = found as Record<Way, Decoded>
  const [ratio, onDevice, goal] = [full.wall / paris.wall, full.gpu / paris.gpu, GOALS[length]]
  const line = `   paris is ${ratio.toFixed(2)} times as fast${goal ? `, goal ${goal}` : ''}; ${onDevice.toFixed(2)} by GPU time`
  out.add(line, { length, ratio, onDevice, goal })
}

/** Growing batches, one way after the other, as far as memory goes. */
async function batches(length: number): Promise<void> {
  for (const way of WAYS) {
    const contexts: Context[] = []
    try {
      for (const batch of BATCHES) {
        const each = model.estimate({ capacity: length + ROOM, attention: way }).total
        const needed = (batch - contexts.length) * each + gpu.allocated()
        if (needed > MEMORY) {
          const line = `${way} x${batch}: ${gigabytes(needed)} GB, the card has ${gigabytes(MEMORY)}: not tried`
          out.add(line, { length, way, batch, needed })
          continue
        }
        contexts.push(...(await open(length, way, batch - contexts.length, contexts.length)))
        await measure(length, way, contexts)
      }
    } finally {
      for (const context of contexts) await context.dispose()
    }
  }
}

async function open(length: number, attention: Way, count: number, first = 0): Promise<Context[]> {
  const contexts: Context[] = []
  for (let i = 0; i < count; i++)
    contexts.push(await openFilled(model, gpu, sources, { length, shift: 3 * (first + i), attention }))
  return contexts
}

/** Attention by itself, which also brings the clocks up, then whole tokens. */
async function measure(length: number, way: Way, contexts: readonly Context[]) {
  const batch = contexts.length
  for (const context of contexts) await context.truncate(length)
  const [attention] = await gpuTimes(gpu, [attentionOf(gpu, contexts)], ROUNDS)
  const decoded = await decode(model, contexts, stamps, PACE)
  const { wall, gpu: device, tokensPerSecond, largest } = decoded
  const known = matrices.get(batch) ?? { layers: Number.NaN, head: Number.NaN }
  const dense = way === 'full' ? (batch * layers * length * ROW) / (attention / 1e3) / PEAK : undefined
  const share = (part: number) => percent(part / device)
  const layer = (device - known.head) / layers
  const cells = [
    `${tokensPerSecond.toFixed(1).padStart(7)} tokens/s`,
    `token ${ms(wall)} wall, ${ms(device)} GPU, ${ms(layer)} a layer`,
    `weights ${share(known.layers + known.head)}`,
    `attention ${ms(attention)} ${share(attention)}${dense ? `, at ${percent(dense)} of 4.4 TB/s` : ''}`,
  ]
  out.add(`${way.padEnd(5)} x${batch}  ${cells.join('  ')}`, {
    ...{ length, way, batch, attention, dense, layer, matrices: known, largest, bytes: contexts[0].memory() },
    ...decoded,
  })
  return decoded
}

function ms(value: number): string {
  return value.toFixed(3)
}
function percent(share: number): string {
  return `${(share * 100).toFixed(1)}%`
}
function gigabytes(bytes: number): string {
  return (bytes / 1e9).toFixed(1)
}
