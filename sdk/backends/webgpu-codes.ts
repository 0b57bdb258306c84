import type { Buf } from '../bytes.ts'
import { type Rows, type Summary, strideOf } from '../codec/codec.ts'
import type { Dtype } from '../dtype.ts'
import type { EncodeJob } from '../kernels/encode.ts'
import type { QueryJob } from '../kernels/query.ts'
import type { RerankJob } from '../kernels/rerank.ts'
import type { RotateJob } from '../kernels/rotate.ts'
import type { StoreJob } from '../kernels/store.ts'
import { M } from '../shape.ts'
import type { GpuContext } from './webgpu-context.ts'
import type { GpuBuf } from './webgpu-memory.ts'
import { byBlocks, inSegments, isSegment } from './webgpu-segments.ts'
import type { Binding } from './webgpu-windows.ts'

export const DTYPES: Readonly<Record<Dtype, number>> = { f32: 0, f16: 1, bf16: 2 }

/** @param headBytes of a head, where it is head-major @param step bytes a key, where a head may be cut as well */
export const bind = (buf: Buf, headBytes?: number, step?: number): Binding => ({ buf: buf as GpuBuf, headBytes, step })
const bindKeys = (buf: Buf, keys: number, step: number) => bind(buf, keys * step, step)

/** Full rows, head-major. */
export const bindRows = ({ buf, cap, d, dtype }: Rows): Binding => bindKeys(buf, cap, d * (dtype === 'f32' ? 4 : 2))

/** The parts of a summary that codes are read from and written to, head-major. */
export function bindSummary(s: Summary): { signs: Binding; magnitudes: Binding; weights: Binding; scales: Binding } {
  const plane = strideOf(s.D / M, s.layout)
  return {
    signs: bindKeys(s.signs, s.cap, plane),
    magnitudes: bindKeys(s.magnitudes, s.cap, 3 * plane),
    weights: bindKeys(s.weights, s.cap, plane),
    scales: bindKeys(s.scales, s.cap, 2),
  }
}

export function rotate(gpu: GpuContext, jobs: readonly RotateJob[]): void {
  gpu.each('rotate', jobs, ({ x, rows, rotation: { d, D, signs }, y, exponents }) => ({
    spec: { D, DIM: d },
    task: {
      bind: [bind(x), bind(signs), bind(y), bind(exponents)],
      fields: [rows],
      x: Math.ceil(rows / (256 / D)),
      heads: 1,
    },
  }))
}

export function query(gpu: GpuContext, jobs: readonly QueryJob[]): void {
  gpu.each('query', jobs, (job) => {
    const { d, D, signs } = job.rotation
    return {
      spec: { D, DIM: d, GROUP: job.group, CHOOSERS: job.choosers },
      task: {
        bind: [bind(job.queries), bind(signs), bind(job.chosen), bind(job.y), bind(job.scales), bind(job.t)],
        fields: [1 / (Math.sqrt(D) * (job.choosers === 1 ? job.group : 1))],
        x: 1,
        heads: job.heads,
      },
    }
  })
}

export function encode(gpu: GpuContext, jobs: readonly EncodeJob[]): void {
  const some = jobs.filter((job) => job.count > 0)
  normPass(gpu, some)
  gpu.each('encode', some, ({ keys, heads, from, count, rotation: { d, D, signs }, summary, at }) => {
    const s = bindSummary(summary)
    const counts = summary.counts ? bind(summary.counts, (D / M) * 1024) : gpu.sink
    // Workgroups begin at a multiple of four in the summary.
    const whole = at - (at % 4)
    const unit = 256 / (D / M)
    const task = {
      bind: [bindRows(keys), bind(signs), s.signs, s.magnitudes, s.weights, s.scales, counts],
      fields: [keys.cap, summary.cap, from, at, count],
      x: Math.ceil((count + (at % 4)) / unit),
      heads,
    }
    return {
      spec: {
        D,
        DIM: d,
        DTYPE: DTYPES[keys.dtype],
        COUNTS: summary.counts ? 1 : 0,
        INV_SQRT_D: Math.fround(1 / Math.sqrt(D)),
      },
      task: byBlocks('encode', task, gpu.recorder.reach, unit, [from - (at % 4), 0, whole, whole, whole, whole]),
    }
  })
}

/** Norm bytes: the exponent each head needs, then old bytes shifted and new ones written, then the exponent raised. */
function normPass(gpu: GpuContext, jobs: readonly EncodeJob[]): void {
  const tasks = jobs.flatMap((job) => {
    const { norms, normExp, cap } = job.summary
    if (!norms || !normExp) return []
    const need = gpu.normNeed(normExp as GpuBuf, job.heads)
    const spec = { DIM: job.rotation.d, DTYPE: DTYPES[job.keys.dtype] }
    return [{ ...job, spec, cap, need: bind(need), norms: bindKeys(norms, cap, 1), normExp: bind(normExp) }]
  })
  gpu.each('norm-need', tasks, ({ spec, keys, from, count, heads, need }) => {
    const fields = [keys.cap, from, count]
    const task = { bind: [bindRows(keys), need], fields, x: Math.ceil(count / 256), heads }
    return { spec, task: byBlocks('norm-need', task, gpu.recorder.reach, 256, [from]) }
  })
  gpu.each('norm-write', tasks, ({ spec, keys, cap, from, at, count, heads, normExp, need, norms }) => {
    const x = Math.ceil((at + count) / 1024)
    const bindings = [bindRows(keys), normExp, need, norms]
    const task = { bind: bindings, fields: [keys.cap, cap, from, at, count], x, heads }
    return { spec, task: byBlocks('norm-write', task, gpu.recorder.reach, 1024, [from - at]) }
  })
  gpu.each('norm-raise', tasks, ({ heads, normExp, need }) => {
    return { spec: {}, task: { bind: [normExp, need], fields: [], x: 1, heads } }
  })
}

/** A "key" of this program is eight coordinates. */
export function store(gpu: GpuContext, jobs: readonly StoreJob[]): void {
  const bytes = (type: Dtype) => (type === 'f32' ? 32 : 16)
  gpu.each('store', jobs, ({ tokens, dtype, heads, count, rows, at, refused }) => {
    const { d, cap, buf } = rows
    const eights = count * (d / 8)
    const into = bindKeys(buf, cap * (d / 8), bytes(rows.dtype))
    const task = {
      bind: [bindKeys(tokens, eights, bytes(dtype)), into, bind(refused)],
      fields: [cap, at, count],
      x: Math.ceil(eights / 256),
      heads,
    }
    return {
      spec: { DIM: d, TOKEN_DTYPE: DTYPES[dtype], ROW_DTYPE: DTYPES[rows.dtype] },
      task: byBlocks('store', task, gpu.recorder.reach, 256, [0, at * (d / 8)]),
    }
  })
}

export function rerank(gpu: GpuContext, jobs: readonly RerankJob[]): void {
  gpu.each('rerank-codes', jobs, (job) => {
    const { source, choosers, count, heads } = job
    if (!('codes' in source)) return undefined
    const { D, cap } = source.codes
    const s = bindSummary(source.codes)
    const [ids, estimates] = bindCandidates(gpu, job)
    const task = {
      bind: [s.signs, s.magnitudes, s.weights, s.scales, ids, bind(source.y), bind(source.scales), estimates],
      fields: [cap, count, job.ids ? 1 : 0, 0, cap],
      x: Math.ceil(count / 256),
      heads,
    }
    const tasks = job.ids
      ? inSegments(task, gpu.recorder.reach, cap)
      : byBlocks('rerank-codes', task, gpu.recorder.reach, 256)
    return { spec: { D, CHOOSERS: choosers, SEGMENT: isSegment(tasks[0]) }, task: tasks }
  })
  gpu.each('rerank-rows', jobs, (job) => {
    const { source, choosers, count, heads } = job
    if (!('rows' in source)) return undefined
    const { rows, base, scale } = source
    const [ids, estimates] = bindCandidates(gpu, job)
    const task = {
      bind: [bindRows(rows), bind(source.chosen), ids, estimates],
      fields: [rows.cap, base, count, job.ids ? 1 : 0, scale, 0, rows.cap],
      x: Math.ceil(count / 16),
      heads,
    }
    const { reach } = gpu.recorder
    const tasks = job.ids
      ? inSegments(task, reach, rows.cap - base, base)
      : byBlocks('rerank-rows', task, reach, 16, [base])
    return {
      spec: { DIM: rows.d, DTYPE: DTYPES[rows.dtype], CHOOSERS: choosers, SEGMENT: isSegment(tasks[0]) },
      task: tasks,
    }
  })
}

/** Where no ids are listed, candidates go key by key and can be cut with the keys. */
function bindCandidates(gpu: GpuContext, { ids, count, estimates }: RerankJob): [Binding, Binding] {
  return ids ? [bind(ids, count * 4), bind(estimates, count * 4)] : [gpu.none, bindKeys(estimates, count, 4)]
}
