import type { Buf, Bytes } from '../bytes.ts'
import { loadRow, type Rows } from '../codec/codec.ts'

/**
 * Partial softmax attention of every query head over a list of positions: the first range, the retrieved ids, the
 * second range, in that order, cut into `parts` equal runs of ⌈positions / parts⌉ (the last ones may be short or empty).
 */
export interface AttendJob<B extends Buf = Buf> {
  /** [Hq, d] f32. */
  readonly queries: B
  readonly keys: Rows<B>
  readonly values: Rows<B>
  readonly heads: number
  readonly group: number
  /** Half-open ranges of positions before and after the retrieved ones; may be empty. */
  readonly before: readonly [number, number]
  readonly after: readonly [number, number]
  /** [H, K] u32 indices; position = base + id. */
  readonly ids: B | null
  readonly k: number
  readonly base: number
  /** Multiplies q·k; 1/√d for most models. */
  readonly scale: number
  readonly parts: number
  /** Out: [parts, Hq, d + 2] f32: Σ exp(s − max)·v, then max, then Σ exp(s − max). An empty part: 0, −Inf, 0. */
  readonly partials: B
}

/** How many positions a job attends to. */
export function attendCount(job: Pick<AttendJob, 'before' | 'after' | 'k'>): number {
  return job.before[1] - job.before[0] + job.k + job.after[1] - job.after[0]
}

/** Reference: natural exponent, sums in f64. */
export function attend(job: AttendJob<Bytes>): void {
  const { heads, group, parts } = job
  const d = job.keys.d
  const total = attendCount(job)
  const run = Math.ceil(total / parts)
  for (let p = 0; p < parts; p++)
    for (let h = 0; h < heads; h++)
      for (let g = 0; g < group; g++) {
        const hq = h * group + g
        const state = softmaxRun(job, h, hq, Math.min(total, p * run), Math.min(total, (p + 1) * run))
        job.partials.f32.set(state, (p * heads * group + hq) * (d + 2))
      }
}

function softmaxRun(job: AttendJob<Bytes>, h: number, hq: number, from: number, to: number): Float64Array {
  const d = job.keys.d
  const row = new Float32Array(d)
  const scores: number[] = []
  for (let i = from; i < to; i++) {
    loadRow(job.keys, h, positionAt(job, h, i), row)
    let dot = 0
    for (let j = 0; j < d; j++) dot += row[j] * job.queries.f32[hq * d + j]
    scores.push(dot * job.scale)
  }
  const state = new Float64Array(d + 2)
  const max = scores.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY)
  state[d] = max
  for (let i = from; i < to; i++) {
    const p = Math.exp(scores[i - from] - max)
    loadRow(job.values, h, positionAt(job, h, i), row)
    for (let j = 0; j < d; j++) state[j] += p * row[j]
    state[d + 1] += p
  }
  return state
}

/** The i-th attended position of head h. */
function positionAt(job: AttendJob<Bytes>, h: number, i: number): number {
  const first = job.before[1] - job.before[0]
  if (i < first) return job.before[0] + i
  if (i < first + job.k && job.ids) return job.base + job.ids.u32[h * job.k + i - first]
  return job.after[0] + i - first - job.k
}
