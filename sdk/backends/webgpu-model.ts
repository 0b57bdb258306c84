import type { ProgramName } from '../../wgsl/programs.ts'
import type { Buf } from '../bytes.ts'
import { dtypeBytes } from '../dtype.ts'
import { ParisError } from '../errors.ts'
import type { GateJob } from '../kernels/gate.ts'
import { type LinearJob, requireFusible } from '../kernels/linear.ts'
import type { LookupJob } from '../kernels/lookup.ts'
import type { NormJob } from '../kernels/norm.ts'
import type { RopeJob } from '../kernels/rope.ts'
import { bind, DTYPES } from './webgpu-codes.ts'
import type { GpuContext } from './webgpu-context.ts'
import { ALIGN } from './webgpu-memory.ts'
import { byBlocks, inSegments } from './webgpu-segments.ts'
import type { Binding } from './webgpu-windows.ts'

/** Above this many tokens tiles of 64 win over passes of 8, each of which reads the weights again. */
const FEW = 32

export function lookup(gpu: GpuContext, jobs: readonly LookupJob[]): void {
  gpu.each('lookup', jobs, ({ ids, tokens, table, dtype, rows, width, output }) => {
    const step = width * dtypeBytes(dtype)
    const task = {
      bind: [bind(ids), bind(table, rows * step, step), bindWhole(gpu, 'lookup', output)],
      fields: [tokens, rows, width, 0, rows],
      x: Math.ceil((tokens * width) / 8 / 256),
      heads: 1,
    }
    return { spec: { DTYPE: DTYPES[dtype] }, task: inSegments(task, gpu.recorder.reach, rows) }
  })
}

export function norm(gpu: GpuContext, jobs: readonly NormJob[]): void {
  gpu.each('norm', jobs, ({ input, rows, width, weight, epsilon, output }) => {
    const lanes = lanesFor(width / 4)
    const unit = 256 / lanes
    const inPlace = input === output
    const bindRows = (buf: Buf) => bind(buf, rows * width * 4, width * 4)
    const task = {
      bind: [inPlace ? gpu.none : bindRows(input), bind(weight), bindRows(output)],
      fields: [rows, width, epsilon],
      x: Math.ceil(rows / unit),
      heads: 1,
    }
    const spec = { LANES: lanes, IN_PLACE: inPlace ? 1 : 0 }
    return { spec, task: byBlocks('norm', task, gpu.recorder.reach, unit) }
  })
}

export function rope(gpu: GpuContext, jobs: readonly RopeJob[]): void {
  // A job without a table or norm is bound to another's, which it does not read: jobs bound alike run as one dispatch.
  const angles = jobs.find(({ table }) => table)?.table
  const weight = jobs.find(({ norm }) => norm)?.norm?.weight
  gpu.each('rope', jobs, ({ input, outer, inner, d, output, table, norm, tokensAxis }) => {
    const lanes = Math.min(32, powerOfTwo(d / 8))
    const [from, to] = [bindWhole(gpu, 'rope', input), bindWhole(gpu, 'rope', output)]
    const flags = [table ? 1 : 0, norm ? 1 : 0, tokensAxis === 'outer' ? 1 : 0]
    const task = {
      bind: [from, bindSome(gpu, table ?? angles), bindSome(gpu, norm?.weight ?? weight), to],
      fields: [outer, inner, d, ...flags, norm?.epsilon ?? 0],
      x: Math.ceil((outer * inner) / (256 / lanes)),
      heads: 1,
    }
    return { spec: { LANES: lanes }, task }
  })
}

export function linear(gpu: GpuContext, jobs: readonly LinearJob[]): void {
  for (const job of jobs) requireFusible(job)
  gpu.each('linear-few', jobs, (job) => {
    const { tokens, inputs, dtype, norm, gated } = job
    if (tokens > FEW) return undefined
    const lanes = lanesFor(inputs / 32)
    const columns = powerOfTwo(Math.min(8, tokens))
    const spec = { DTYPE: DTYPES[dtype], LANES: lanes, COLUMNS: columns, NORM: norm ? 1 : 0, GATED: gated ? 1 : 0 }
    return { spec, task: linearTasks(gpu, 'linear-few', job, (gated ? 512 : 1024) / lanes, 8) }
  })
  gpu.each('linear-many', jobs, (job) => {
    if (job.tokens <= FEW) return undefined
    return { spec: { DTYPE: DTYPES[job.dtype] }, task: linearTasks(gpu, 'linear-many', job, 128, 64) }
  })
}

/** @param unit outputs of a workgroup @param columns tokens of one */
function linearTasks(gpu: GpuContext, name: ProgramName, job: LinearJob, unit: number, columns: number) {
  const { tokens, inputs, outputs, bias, add, norm, gated } = job
  const step = inputs * dtypeBytes(job.dtype)
  const bindMatrix = (buf: Buf) => bind(buf, outputs * step, step)
  const bindings = [bindWhole(gpu, name, job.input), bindMatrix(job.weights), bindSome(gpu, bias)]
  if (name === 'linear-few') bindings.push(bindSome(gpu, norm?.weight), gated ? bindMatrix(gated) : gpu.none)
  bindings.push(bindWhole(gpu, name, job.output))
  return Array.from({ length: Math.ceil(tokens / columns) }, (_, i) => {
    const count = Math.min(columns, tokens - i * columns)
    const fields = [count, i * columns, inputs, outputs, bias ? 1 : 0, add ? 1 : 0]
    if (name === 'linear-few') fields.push(norm?.epsilon ?? 0)
    const task = { bind: bindings, fields, x: Math.ceil(outputs / unit), heads: 1 }
    return byBlocks(name, task, gpu.recorder.reach, unit)
  }).flat()
}

export function gate(gpu: GpuContext, jobs: readonly GateJob[]): void {
  gpu.each('gate', jobs, (job) => {
    const { count } = job
    const inPlace = job.gate === job.output
    const bindValues = (buf: Buf) => bind(buf, count * 4, 4)
    const task = {
      bind: [inPlace ? gpu.none : bindValues(job.gate), bindValues(job.up), bindValues(job.output)],
      fields: [count],
      x: Math.ceil(count / 256),
      heads: 1,
    }
    return { spec: { IN_PLACE: inPlace ? 1 : 0 }, task: byBlocks('gate', task, gpu.recorder.reach, 256) }
  })
}

const bindSome = (gpu: GpuContext, buf: Buf | undefined) => (buf ? bind(buf) : gpu.none)

const powerOfTwo = (x: number) => 2 ** Math.ceil(Math.log2(x))

/** Threads side by side on one row, of a workgroup of 256. */
const lanesFor = (wanted: number) => Math.max(8, Math.min(256, powerOfTwo(wanted)))

/** Activations that a program reads or writes in any order. @throws ParisError `out_of_range` above one binding */
function bindWhole(gpu: GpuContext, name: string, buf: Buf): Binding {
  const binding = bind(buf)
  const { bytes } = gpu.recorder.reach
  if (binding.buf.slab.size <= bytes || buf.bytes <= bytes - 2 * ALIGN) return binding
  throw new ParisError('out_of_range', {
    where: `webgpu.${name}`,
    got: `${buf.bytes} bytes of activations in one binding`,
    want: `at most ${bytes - 2 * ALIGN}`,
    fix: 'Hand in fewer tokens a call, or ask the adapter for its largest maxStorageBufferBindingSize.',
  })
}
