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
import type { Binding, Task } from './webgpu-windows.ts'

export const DTYPES: Readonly<Record<Dtype, number>> = { f32: 0, f16: 1, bf16: 2 }

export const bind = (buf: Buf, headBytes?: number): Binding => ({ buf: buf as GpuBuf, headBytes })

/** Full rows, head-major. */
export const bindRows = ({ buf, cap, d, dtype }: Rows): Binding => bind(buf, cap * d * (dtype === 'f32' ? 4 : 2))

/** The parts of a summary that codes are read from and written to, head-major. */
export function bindSummary(s: Summary): { signs: Binding; magnitudes: Binding; weights: Binding; scales: Binding } {
  const plane = s.cap * strideOf(s.D / M, s.layout)
  return {
    signs: bind(s.signs, plane),
    magnitudes: bind(s.magnitudes, 3 * plane),
    weights: bind(s.weights, plane),
    scales: bind(s.scales, s.cap * 2),
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
    return {
      spec: {
        D,
        DIM: d,
        DTYPE: DTYPES[keys.dtype],
        COUNTS: summary.counts ? 1 : 0,
        INV_SQRT_D: Math.fround(1 / Math.sqrt(D)),
      },
      task: {
        bind: [bindRows(keys), bind(signs), s.signs, s.magnitudes, s.weights, s.scales, counts],
        fields: [keys.cap, summary.cap, from, at, count],
        x: Math.ceil((count + (at % 4)) / (256 / (D / M))),
        heads,
      },
    }
  })
}

/** Norm bytes: the exponent each head needs, then old bytes shifted and new ones written, then the exponent raised. */
function normPass(gpu: GpuContext, jobs: readonly EncodeJob[]): void {
  const tasks = jobs.flatMap((job) => {
    const { norms, normExp, cap } = job.summary
    if (!norms || !normExp) return []
    const need = gpu.normNeed(normExp as GpuBuf, job.heads)
    const spec = { D: job.rotation.D, DIM: job.rotation.d, DTYPE: DTYPES[job.keys.dtype] }
    return [{ ...job, spec, cap, need: bind(need), norms: bind(norms, cap), normExp: bind(normExp) }]
  })
  gpu.each('norm-need', tasks, ({ spec, keys, from, count, heads, need }) => {
    const bindings = [bindRows(keys), need]
    return { spec, task: { bind: bindings, fields: [keys.cap, from, count], x: Math.ceil(count / 256), heads } }
  })
  gpu.each('norm-write', tasks, ({ spec, keys, cap, from, at, count, heads, normExp, need, norms }) => {
    const x = Math.ceil((at + count) / 1024)
    const bindings = [bindRows(keys), normExp, need, norms]
    return { spec, task: { bind: bindings, fields: [keys.cap, cap, from, at, count], x, heads } }
  })
  gpu.each('norm-raise', tasks, ({ heads, normExp, need }) => {
    return { spec: {}, task: { bind: [normExp, need], fields: [], x: 1, heads } }
  })
}

export function store(gpu: GpuContext, jobs: readonly StoreJob[]): void {
  gpu.each('store', jobs, ({ tokens, dtype, heads, count, rows, at, refused }) => {
    const { d } = rows
    const eights = count * (d / 8)
    return {
      spec: { DIM: d, TOKEN_DTYPE: DTYPES[dtype], ROW_DTYPE: DTYPES[rows.dtype] },
      task: {
        bind: [bind(tokens, eights * (dtype === 'f32' ? 32 : 16)), bindRows(rows), bind(refused)],
        fields: [rows.cap, at, count],
        x: Math.ceil(eights / 256),
        heads,
      },
    }
  })
}

export function rerank(gpu: GpuContext, jobs: readonly RerankJob[]): void {
  const perHead = ({ count }: RerankJob) => count * 4
  gpu.each('rerank-codes', jobs, (job) => {
    const { source } = job
    if (!('codes' in source)) return undefined
    const { D, cap } = source.codes
    const s = bindSummary(source.codes)
    const ids = job.ids ? bind(job.ids, perHead(job)) : gpu.none
    const planes = [s.signs, s.magnitudes, s.weights, s.scales]
    const task: Task = {
      bind: [...planes, ids, bind(source.y), bind(source.scales), bind(job.estimates, perHead(job))],
      fields: [cap, job.count, job.ids ? 1 : 0],
      x: Math.ceil(job.count / 256),
      heads: job.heads,
    }
    return { spec: { D, CHOOSERS: job.choosers }, task }
  })
  gpu.each('rerank-rows', jobs, (job) => {
    const { source } = job
    if (!('rows' in source)) return undefined
    const { rows } = source
    const ids = job.ids ? bind(job.ids, perHead(job)) : gpu.none
    const task: Task = {
      bind: [bindRows(rows), bind(source.chosen), ids, bind(job.estimates, perHead(job))],
      fields: [rows.cap, source.base, job.count, job.ids ? 1 : 0, source.scale],
      x: Math.ceil(job.count / 16),
      heads: job.heads,
    }
    return { spec: { DIM: rows.d, DTYPE: DTYPES[rows.dtype], CHOOSERS: job.choosers }, task }
  })
}
