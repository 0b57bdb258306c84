import { type AttendJob, attendCount } from '../kernels/attend.ts'
import type { DenseJob } from '../kernels/dense.ts'
import type { MergeJob } from '../kernels/merge.ts'
import { paddedDim } from '../shape.ts'
import { bind, bindRows, DTYPES } from './webgpu-codes.ts'
import type { GpuContext } from './webgpu-context.ts'
import { inSegments, isSegment } from './webgpu-segments.ts'

const MINUS_INF = 0xff800000
/** Rows of one tile of `attend` at d 128, 16 to 64 at others: below that a workgroup has threads to spare. */
const TILE = 32

export function attend(gpu: GpuContext, jobs: readonly AttendJob[]): void {
  gpu.each('attend', jobs, (job) => {
    const { keys, values, heads, group, before, after, ids, k, base, scale, parts } = job
    const D = paddedDim(keys.d)
    const GQ = group === 1 ? 1 : group === 2 ? 2 : 4
    const CHUNKS = Math.ceil(group / GQ)
    const total = attendCount(job)
    const run = Math.max(1, Math.ceil(total / parts))
    const first = before[1] - before[0]
    const task = {
      bind: [
        bind(job.queries),
        bindRows(keys),
        bindRows(values),
        ids ? bind(ids, k * 4) : gpu.none,
        bind(job.partials),
      ],
      fields: [
        keys.cap,
        values.cap,
        first,
        before[0],
        after[0],
        base,
        k,
        total,
        run,
        parts,
        heads,
        scale,
        MINUS_INF,
        0,
        keys.cap,
      ],
      x: parts * CHUNKS,
      heads,
    }
    const tasks = inSegments(task, gpu.recorder.reach, ids ? keys.cap : Math.max(1, before[1], after[1]))
    return {
      spec: {
        D,
        DIM: keys.d,
        KEY_DTYPE: DTYPES[keys.dtype],
        VALUE_DTYPE: DTYPES[values.dtype],
        GROUP: group,
        GQ,
        CHUNKS,
        WG: Math.min(256, (D / 8) * 32),
        SEGMENT: isSegment(tasks[0]),
        SUBGROUP: D / 8 <= gpu.lanes ? 1 : 0,
      },
      task: tasks,
    }
  })
}

/** Parts that fill the device, none shorter than a tile. */
export function partsOf(gpu: GpuContext, positions: number, heads: number): number {
  const wanted = Math.max(1, Math.floor(gpu.slots / heads))
  return Math.max(1, Math.min(wanted, Math.ceil(positions / TILE)))
}

export function merge(gpu: GpuContext, jobs: readonly MergeJob[]): void {
  gpu.each('merge', jobs, ({ partials, parts, queryHeads, d, output, lse }) => ({
    spec: { DIM: d },
    task: {
      bind: [bind(partials), bind(output), bind(lse)],
      fields: [parts, queryHeads, MINUS_INF],
      x: Math.ceil(d / 32),
      heads: queryHeads,
    },
  }))
}

export function dense(gpu: GpuContext, jobs: readonly DenseJob[]): void {
  gpu.each('dense', jobs, (job) => {
    const { queries, tokens, first, keys, values, heads, group, scale, output, lse } = job
    const { d } = keys
    const length = Math.min(first + tokens, job.length ?? first + tokens)
    const rows = tokens * group
    const task = {
      bind: [
        bind(queries, rows * d * 4),
        bindRows(keys),
        bindRows(values),
        bind(output, rows * d * 4),
        bind(lse, rows * 4),
      ],
      fields: [keys.cap, values.cap, tokens, first, scale, 0, length],
      x: Math.ceil(rows / 64),
      heads,
    }
    // Rows that end before the last query's position are one segment of those it would see.
    const short = length < first + tokens ? { ...task, block0: 0 } : task
    const tasks = inSegments(short, gpu.recorder.reach, length)
    return {
      spec: {
        D: paddedDim(d),
        DIM: d,
        KEY_DTYPE: DTYPES[keys.dtype],
        VALUE_DTYPE: DTYPES[values.dtype],
        GROUP: group,
        SEGMENT: isSegment(tasks[0]),
      },
      task: tasks,
    }
  })
}
