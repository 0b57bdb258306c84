import { type CoarseCollisionJob, tierLimits } from '../kernels/coarse-collision.ts'
import type { CoarseSignsJob } from '../kernels/coarse-signs.ts'
import type { SelectJob } from '../kernels/select.ts'
import type { TopkJob } from '../kernels/topk.ts'
import { M } from '../shape.ts'
import { bind, bindSummary } from './webgpu-codes.ts'
import type { GpuContext, Histogram } from './webgpu-context.ts'
import type { GpuBuf } from './webgpu-memory.ts'
import { byBlocks } from './webgpu-segments.ts'

/** Scores that a histogram tells apart: bin = (score − lo) >> shift. */
interface Bins {
  readonly lo: number
  readonly shift: number
  readonly bins: number
}

function binsOf(lo: number, hi: number, step: number): Bins {
  const shift = step === 2 ? 1 : 0
  return { lo, shift, bins: ((hi - lo) >> shift) + 1 }
}

/**
 * Keys a workgroup scores or scans: a multiple of 2048, so many that all workgroups run at once and that a head has at
 * most 256 chunks, but no more than one binding holds, at `step` bytes a key.
 */
function chunkOf(gpu: GpuContext, count: number, heads: number, step: number): number {
  const atOnce = gpu.slots / 2
  const most = Math.max(1, Math.floor((gpu.recorder.reach.bytes - 512) / step / 2048))
  return 2048 * Math.min(most, Math.ceil(Math.max(count / 256, (count * heads) / atOnce) / 2048))
}

const stateAt = (heads: number, { bins }: Bins) => heads * bins
const blocksAt = (heads: number, bins: Bins) => stateAt(heads, bins) + 2 * heads
const scratchWords = (heads: number, bins: Bins) => blocksAt(heads, bins) + 512 * heads
const nameOf = (b: Bins, count: number, heads: number) => `${b.lo} ${b.shift} ${b.bins} ${count} ${heads}`

interface Scored {
  readonly scores: GpuBuf
  readonly heads: number
  readonly count: number
}

/** Zeroed histograms for jobs about to be counted. */
function prepare(gpu: GpuContext, { scores, heads, count }: Scored, bins: Bins): Histogram {
  const histogram = gpu.histogram(scores, scratchWords(heads, bins))
  if (gpu.recorder.collecting) {
    histogram.noted = nameOf(bins, count, heads)
    return histogram
  }
  if (histogram.dirty) gpu.recorder.clear(histogram.buf)
  histogram.unsure = histogram.dirty && gpu.recorder.recording !== 0
  histogram.dirty = true
  histogram.recording = gpu.recorder.recording
  histogram.ready = nameOf(bins, count, heads)
  return histogram
}

/** Constants of a histogram: copies of it in workgroup memory as far as `taken` bytes leave room. */
function histogramSpec(gpu: GpuContext, { lo, shift, bins }: Bins, copies: number, taken: number) {
  const fits = bins * copies * 4 + taken <= gpu.shared
  return { BINS: bins, LO: lo, SHIFT: shift, REP: fits ? copies : 1, FITS: fits ? 1 : 0 }
}

export function coarseSigns(gpu: GpuContext, jobs: readonly CoarseSignsJob[]): void {
  const planned = jobs.map((job) => {
    const { D } = job.summary
    const bins = binsOf(-15 * D, 15 * D, job.choosers === 1 && !job.normWeighted ? 2 : 1)
    const scored = { scores: job.scores as GpuBuf, heads: job.heads, count: job.count }
    return { job, bins, histogram: prepare(gpu, scored, bins) }
  })
  gpu.each('coarse-signs', planned, ({ job, bins, histogram }) => {
    const { summary, choosers, heads, count, stride } = job
    const { D, cap } = summary
    const weighted = job.normWeighted && summary.norms
    const taken = choosers * (20 * Math.ceil(D / 32) + D + 4) + 64
    const chunk = chunkOf(gpu, count, heads * jobs.length, Math.max(4, D / 8))
    const task = {
      bind: [
        bindSummary(summary).signs,
        bind(job.t),
        weighted ? bind(weighted, cap, 1) : gpu.none,
        bind(job.scores, stride * 2, 2),
        bind(histogram.buf),
      ],
      fields: [cap, stride, count, chunk],
      x: Math.ceil(count / chunk),
      heads,
    }
    return {
      spec: { D, CHOOSERS: choosers, NORMS: weighted ? 1 : 0, ...histogramSpec(gpu, bins, 1, taken) },
      task: byBlocks('coarse-signs', task, gpu.recorder.reach, chunk),
    }
  })
}

export function coarseCollision(gpu: GpuContext, jobs: readonly CoarseCollisionJob[]): void {
  const planned = jobs.map((job) => {
    const B = job.summary.D / M
    const bins = binsOf(0, 6 * B, 1)
    const scored = { scores: job.scores as GpuBuf, heads: job.heads, count: job.count }
    const histogram = prepare(gpu, scored, bins)
    const table = gpu.table(job.scores as GpuBuf, job.heads * job.choosers * B * 256)
    return { job, B, bins, histogram, table }
  })
  gpu.each('tiers', planned, ({ job, B, table }) => {
    const { summary, choosers, heads, count, rho, y } = job
    const counts = summary.counts
    if (!counts) throw new TypeError('coarseCollision needs summary.counts')
    return {
      spec: { D: summary.D, CHOOSERS: choosers },
      task: {
        bind: [bind(y), bind(counts, B * 1024), bind(table)],
        fields: tierLimits(count, rho),
        x: choosers * B,
        heads,
      },
    }
  })
  gpu.each('coarse-collision', planned, ({ job, B, bins, histogram, table }) => {
    const { summary, choosers, heads, count, stride } = job
    const chunk = chunkOf(gpu, count, heads * jobs.length, Math.max(4, summary.D / 8))
    const task = {
      bind: [bindSummary(summary).signs, bind(table), bind(job.scores, stride * 2, 2), bind(histogram.buf)],
      fields: [summary.cap, stride, count, chunk],
      x: Math.ceil(count / chunk),
      heads,
    }
    return {
      spec: { D: summary.D, CHOOSERS: choosers, ...histogramSpec(gpu, bins, 8, B * 256 + 64) },
      task: byBlocks('coarse-collision', task, gpu.recorder.reach, chunk),
    }
  })
}

export function select(gpu: GpuContext, jobs: readonly SelectJob[]): void {
  const planned = jobs.map((job) => {
    const bins = binsOf(job.lo, job.hi, job.step)
    const { heads, count, stride, candidates } = job
    const scored = { scores: job.scores as GpuBuf, heads, count }
    let histogram = gpu.histogram(scored.scores, scratchWords(heads, bins))
    const ready = gpu.recorder.collecting ? histogram.noted : histogram.ready
    const counted = ready === nameOf(bins, count, heads)
    if (!counted) histogram = prepare(gpu, scored, bins)
    const chunk = chunkOf(gpu, count, heads * jobs.length, 2)
    const range = { x: Math.ceil(count / chunk), heads }
    const fields = [stride, count, chunk, candidates, stateAt(heads, bins), blocksAt(heads, bins)]
    return { job, bins, histogram, counted, chunk, range, fields, scores: bind(job.scores, stride * 2, 2) }
  })
  gpu.each('select-histogram', planned, ({ bins, histogram, counted, chunk, range, fields, scores }) => {
    if (counted) return undefined
    const task = { bind: [scores, bind(histogram.buf)], fields: fields.slice(0, 3), ...range }
    return {
      spec: histogramSpec(gpu, bins, 1, 64),
      task: byBlocks('select-histogram', task, gpu.recorder.reach, chunk),
    }
  })
  const spec = ({ lo, shift, bins }: Bins) => ({ BINS: bins, LO: lo, SHIFT: shift })
  gpu.each('select-count', planned, ({ bins, histogram, chunk, range, fields, scores }) => {
    const task = { bind: [scores, bind(histogram.buf)], fields, ...range }
    return { spec: spec(bins), task: byBlocks('select-count', task, gpu.recorder.reach, chunk) }
  })
  gpu.each('select-write', planned, ({ job, bins, histogram, chunk, range, fields, scores }) => {
    if (!gpu.recorder.collecting) {
      histogram.dirty = histogram.unsure || histogram.recording !== gpu.recorder.recording
      histogram.ready = undefined
    }
    const ids = bind(job.ids, job.candidates * 4)
    const task = { bind: [scores, bind(histogram.buf), ids], fields, ...range }
    return { spec: spec(bins), task: byBlocks('select-write', task, gpu.recorder.reach, chunk) }
  })
}

export function topk(gpu: GpuContext, jobs: readonly TopkJob[]): void {
  const planned = jobs.map((job) => {
    const WG = Math.min(1024, 2 ** Math.floor(Math.log2(gpu.invocations)))
    const RADIX = gpu.shared >= 32768 ? 11 : 8
    const sort = 2 ** Math.max(1, Math.ceil(Math.log2(job.k)))
    const FEW = WG >= 256 && job.k * 4 <= WG ? 256 : 1
    const SORT = sort * 8 + (4 << RADIX) + WG * 4 + FEW * 12 + 320 <= gpu.shared ? sort : 1
    const spill = SORT > 1 ? gpu.sink : bind(gpu.spill(job.topIds as GpuBuf, job.heads * job.k * 8))
    const ids = job.ids ? bind(job.ids, job.count * 4) : gpu.none
    const fields = [job.count, job.k, job.ids ? 1 : 0]
    return { job, spec: { WG, RADIX, SORT, FEW }, spill, ids, fields }
  })
  gpu.each('topk', planned, ({ job, spec, spill, ids, fields }) => {
    const { values, topIds, topValues, heads, count, k } = job
    const out = [bind(topIds, k * 4), bind(topValues, k * 4)]
    return { spec, task: { bind: [bind(values, count * 4), ids, ...out, spill], fields, x: 1, heads } }
  })
  gpu.each('topk-rank', planned, ({ job, spec, spill, ids, fields }) => {
    if (spec.SORT > 1) return undefined
    const { values, topIds, topValues, heads, count, k } = job
    const out = [bind(topIds, k * 4), bind(topValues, k * 4)]
    const task = { bind: [bind(values, count * 4), ids, spill, ...out], fields, x: Math.ceil(k / 256), heads }
    return { spec: {}, task }
  })
}
