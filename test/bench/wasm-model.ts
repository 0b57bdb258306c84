/**
 * A model's matrices and full attention in WebAssembly on one core: `npx tsx test/bench/wasm-model.ts [--quick]`.
 * Medians of runs that take turns in one process, as shares of the module's dot rate: f32 products whose 24 KiB of
 * weights stay in the nearest cache. Figures also in build/bench-wasm-model.json.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import type { Buf } from '../../sdk/backend.ts'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { type Dtype, dtypeBytes, f32ToBf16, f32ToF16 } from '../../sdk/dtype.ts'
import { compileKernels } from '../support/kernels-wasm.ts'
import { takeTurns } from './wasm-turns.ts'

const { values: args } = parseArgs({ options: { quick: { type: 'boolean', default: false } } })
const rounds = args.quick ? 5 : 15
const SHAPES = [
  [384, 1024],
  [384, 512],
  [1024, 384],
  [1024, 4096],
] as const
const TOKENS = args.quick ? [1, 8, 64] : [1, 8, 64, 512]
const ATTENTION = { keys: args.quick ? 4096 : 16_384, heads: 2, group: 4, d: 128 }

/** Something to time, and how many multiply-adds it is. */
interface Task {
  readonly name: string
  readonly macs: number
  run(): void
}

const backend = createWasmBackend(compileKernels())
let state = 1

/** A buffer of `count` numbers in (−.5, .5). */
async function filled(count: number, dtype: Dtype): Promise<Buf> {
  const [buf] = await backend.alloc([{ label: 'bench', bytes: count * dtypeBytes(dtype) }])
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return state / 2 ** 32 - 0.5
  }
  const narrow = dtype === 'bf16' ? f32ToBf16 : f32ToF16
  const data =
    dtype === 'f32'
      ? Float32Array.from({ length: count }, next)
      : Uint16Array.from({ length: count }, () => narrow(next()))
  backend.write(buf, 0, new Uint8Array(data.buffer))
  return buf
}

async function linearTask(name: string, inputs: number, outputs: number, tokens: number, dtype: Dtype, times = 1) {
  const input = await filled(tokens * inputs, 'f32')
  const weights = await filled(outputs * inputs, dtype)
  const output = await filled(tokens * outputs, 'f32')
  const job = { input, tokens, weights, dtype, inputs, outputs, add: false, output }
  const jobs = Array.from({ length: times }, () => job)
  const macs = tokens * inputs * outputs * times
  return { task: { name, macs, run: () => backend.linear(jobs) }, buffers: [input, weights, output] }
}

async function attentionTask(name: string, dtype: Dtype): Promise<{ task: Task; buffers: Buf[] }> {
  const { keys: n, heads, group, d } = ATTENTION
  const queries = await filled(heads * group * d, 'f32')
  const keys = await filled(heads * n * d, dtype)
  const values = await filled(heads * n * d, dtype)
  const partials = await filled(heads * group * (d + 2), 'f32')
  const rows = (buf: Buf) => ({ buf, dtype, cap: n, d })
  const all = { before: [0, n], after: [n, n], ids: null, k: 0, base: 0 } as const
  const shape = { heads, group, scale: 1 / Math.sqrt(d), parts: 1 }
  const job = { queries, keys: rows(keys), values: rows(values), ...all, ...shape, partials }
  const macs = 2 * heads * group * n * d
  return { task: { name, macs, run: () => backend.attend([job]) }, buffers: [queries, keys, values, partials] }
}

const dot = (await linearTask('dot', 384, 16, 1, 'f32', 50)).task
const rows: { name: string; ms: number; gflops: number; shareOfDot: number }[] = []

/** Times tasks and the dot rate in turns. */
async function measure(made: { task: Task; buffers: Buf[] }[]): Promise<void> {
  const tasks = [dot, ...made.map(({ task }) => task)]
  const times = takeTurns(rounds, Object.fromEntries(tasks.map(({ name, run }) => [name, run])))
  const rate = ({ name, macs }: Task) => (2 * macs) / times[name].ms / 1e6
  for (const task of tasks) {
    const row = { name: task.name, ms: times[task.name].ms, gflops: rate(task), shareOfDot: rate(task) / rate(dot) }
    rows.push(row)
    const figures = `${row.ms.toFixed(3).padStart(10)} ms${row.gflops.toFixed(1).padStart(8)} GFLOP/s`
    console.log(`${row.name.padEnd(32)}${figures}${(100 * row.shareOfDot).toFixed(0).padStart(6)}% of dot`)
  }
  for (const { buffers } of made) backend.free(buffers)
}

const machine = `${cpus()[0]?.model.trim()}, node ${process.version}, one thread`
console.log(machine)
for (const dtype of args.quick ? (['bf16'] as const) : (['bf16', 'f16', 'f32'] as const))
  for (const [inputs, outputs] of SHAPES) {
    const made = []
    for (const tokens of TOKENS)
      made.push(await linearTask(`${dtype} ${inputs}→${outputs}, T = ${tokens}`, inputs, outputs, tokens, dtype))
    await measure(made)
  }
const attention = []
for (const dtype of ['bf16', 'f32'] as const)
  attention.push(await attentionTask(`full attention, ${ATTENTION.keys} keys, ${dtype}`, dtype))
await measure(attention)

const folder = new URL('../../build/', import.meta.url)
mkdirSync(folder, { recursive: true })
writeFileSync(new URL('bench-wasm-model.json', folder), JSON.stringify({ machine, rows }, null, 2))
console.log('\nbuild/bench-wasm-model.json written')
