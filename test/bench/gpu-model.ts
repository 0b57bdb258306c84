// GPU times of the model kernels at the shapes of a Qwen3-8B with bf16 weights, beside what they must move or multiply.
// npx esbuild test/bench/gpu-model.ts --bundle --platform=node --format=esm --external:webgpu --outfile=build/gpu-model.mjs
// node build/gpu-model.mjs; `--quick` is for software GPUs.
import { writeFileSync } from 'node:fs'
import type { Buf } from '../../sdk/backend.ts'
import { FUSED_TOKENS, type LinearJob } from '../../sdk/kernels/linear.ts'
import { checkLinear, fusedShapes, type Matrices, makeCalls, makePattern, shapesOf } from './gpu-model-data.ts'
import { openGpu } from './gpu-open.ts'
import { gpuTimes } from './gpu-time.ts'

const quick = process.argv.includes('--quick')
const ROUNDS = quick ? 2 : 11
const SHAPES = shapesOf(quick ? 32 : 1)
const TOKENS = quick ? [1, 2, 4, 8, 16, 40] : [1, 2, 4, 8, 16, 32, 64, 512]
/** Bytes a second and f32 operations a second of an H200. */
const [PEAK, FLOPS] = [4.4e12, 67e12]
/** Weights of a stage: several times what caches hold. */
const COLD = quick ? 1 : 4e8

const results: object[] = []
const backend = await openGpu()
const pattern = await makePattern(backend)
console.log(`${backend.description}; bf16 weights; floor: 4.4 TB/s up to 8 tokens, 67 TFLOP/s above\n`)

for (const tokens of TOKENS) {
  const milliseconds = new Map<string, number>()
  for (const shape of [...SHAPES, ...(tokens <= FUSED_TOKENS ? fusedShapes(SHAPES) : [])]) {
    if (tokens > 64 && shape.name === 'vocabulary') continue
    milliseconds.set(shape.name, await measure(shape, tokens))
  }
  const of = (name: string) => milliseconds.get(name) ?? Number.NaN
  const layer = of('q, k, v') + of('o') + of('gate, up') + of('down')
  const fused = tokens <= FUSED_TOKENS && of('norm q, k, v') + of('o') + of('norm gate · up') + of('down')
  const beside = fused ? `, with norms and gates inside ${ms(fused)}` : ''
  report(`   the matrices of a layer ${ms(layer)}${beside}\n`, { tokens, layer, fused })
}
for (const tokens of quick ? [1, 9] : [1, 8, 512]) await small(tokens)
backend.free([pattern])
backend.dispose()

/** @returns milliseconds a call */
async function measure(shape: Matrices, tokens: number): Promise<number> {
  const { name, inputs, outputs } = shape
  const rows = outputs.reduce((sum, m) => sum + m, 0)
  const bytes = rows * inputs * 2
  const { calls, all } = await makeCalls(backend, pattern, shape, tokens, Math.max(1, Math.ceil(COLD / bytes)))
  const stage = () => {
    for (const jobs of calls) backend.linear(jobs)
  }
  await backend.warm(stage)
  stage()
  for (const job of calls[calls.length - 1]) await checkLinear(backend, job as LinearJob)
  const time = (await gpuTimes(backend, [stage], ROUNDS))[0] / calls.length
  const moved = bytes + tokens * (inputs + rows) * 4
  const flop = 2 * tokens * rows * inputs
  const rate =
    tokens <= 8
      ? `${ms((moved / PEAK) * 1e3)}  ${(moved / time / 1e6).toFixed(0).padStart(5)} GB/s ${percent(moved / (time / 1e3) / PEAK)}`
      : `${ms((flop / FLOPS) * 1e3)}  ${(flop / time / 1e9).toFixed(2).padStart(5)} TFLOP/s ${percent(flop / (time / 1e3) / FLOPS)}`
  report(`T ${String(tokens).padEnd(3)} ${name.padEnd(14)} ${`${rows} x ${inputs}`.padEnd(14)} ${ms(time)} /${rate}`, {
    ...{ tokens, name, rows, inputs, time, bytes: moved, flop },
  })
  backend.free(all)
  return time
}

/** The kernels between the matrices, each as a layer calls it. */
async function small(tokens: number): Promise<void> {
  const [hidden, ffn] = [SHAPES[3].inputs, SHAPES[5].inputs]
  const [heads, d] = [hidden / 128, 128]
  const sizes = [tokens, pattern.bytes, ...[hidden, hidden, hidden, d, ffn, ffn].map((n) => tokens * n * 4)]
  const made = await backend.alloc(sizes.map((bytes) => ({ label: 'activations', bytes: Math.max(bytes, 4 * hidden) })))
  const [ids, , x, y, weight, table, gate, up]: Buf[] = made
  const vectors = { weight, epsilon: 1e-6 }
  const stages: Record<string, () => void> = {
    lookup: () => {
      const table = { table: pattern, dtype: 'bf16' as const, rows: Math.floor(pattern.bytes / 2 / hidden) }
      backend.lookup([{ ids, tokens, ...table, width: hidden, output: x }])
    },
    norm: () => backend.norm([{ input: x, rows: tokens, width: hidden, ...vectors, output: y }]),
    'norm of heads': () => backend.norm([{ input: x, rows: tokens * heads, width: d, ...vectors, output: x }]),
    rope: () =>
      backend.rope([{ input: x, outer: tokens, inner: heads, d, table, tokensAxis: 'outer' as const, output: y }]),
    gate: () => backend.gate([{ gate, up, count: tokens * ffn, output: gate }]),
  }
  const times = await gpuTimes(backend, Object.values(stages), ROUNDS)
  const cells = Object.keys(stages).map((name, i) => `${name} ${ms(times[i])}`)
  report(`T ${String(tokens).padEnd(3)} ${cells.join('  ')}`, { tokens, names: Object.keys(stages), times })
  backend.free(made)
}

function report(line: string, values: object): void {
  console.log(line)
  results.push(values)
  if (process.env.OUT) writeFileSync(`${process.env.OUT}/gpu-model.json`, JSON.stringify(results, null, 1))
}
function ms(value: number): string {
  return value.toFixed(4).padStart(8)
}
function percent(share: number): string {
  return `${(share * 100).toFixed(1).padStart(5)}%`
}
