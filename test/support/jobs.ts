import type { Backend, Buf, Kernels } from '../../sdk/backend.ts'
import { Bytes } from '../../sdk/bytes.ts'
import {
  magnitudeByte,
  NO_EXPONENT,
  type Rows,
  type Summary,
  type SummaryLayout,
  signByte,
  summaryParts,
  weightByte,
} from '../../sdk/codec/codec.ts'
import { type AttendJob, attend } from '../../sdk/kernels/attend.ts'
import { type CoarseCollisionJob, coarseCollision } from '../../sdk/kernels/coarse-collision.ts'
import { type CoarseSignsJob, coarseSigns } from '../../sdk/kernels/coarse-signs.ts'
import { type DenseJob, dense } from '../../sdk/kernels/dense.ts'
import { type EncodeJob, encode } from '../../sdk/kernels/encode.ts'
import { type GateJob, gate } from '../../sdk/kernels/gate.ts'
import { type LinearJob, linear } from '../../sdk/kernels/linear.ts'
import { type LookupJob, lookup } from '../../sdk/kernels/lookup.ts'
import { type MergeJob, merge } from '../../sdk/kernels/merge.ts'
import { type NormJob, norm } from '../../sdk/kernels/norm.ts'
import { type QueryJob, query } from '../../sdk/kernels/query.ts'
import { type RerankJob, rerank } from '../../sdk/kernels/rerank.ts'
import { type RopeJob, rope } from '../../sdk/kernels/rope.ts'
import { type RotateJob, rotate } from '../../sdk/kernels/rotate.ts'
import { type SelectJob, select } from '../../sdk/kernels/select.ts'
import { type StoreJob, store } from '../../sdk/kernels/store.ts'
import { type TopkJob, topk } from '../../sdk/kernels/topk.ts'
import { poisoned } from './inputs.ts'

/** The job of each verb on host memory, summaries in canonical layout. */
export interface HostJobs {
  rotate: RotateJob<Bytes>
  encode: EncodeJob<Bytes>
  query: QueryJob<Bytes>
  coarseSigns: CoarseSignsJob<Bytes>
  coarseCollision: CoarseCollisionJob<Bytes>
  select: SelectJob<Bytes>
  rerank: RerankJob<Bytes>
  topk: TopkJob<Bytes>
  attend: AttendJob<Bytes>
  merge: MergeJob<Bytes>
  dense: DenseJob<Bytes>
  store: StoreJob<Bytes>
  lookup: LookupJob<Bytes>
  norm: NormJob<Bytes>
  rope: RopeJob<Bytes>
  linear: LinearJob<Bytes>
  gate: GateJob<Bytes>
}
export type Verb = keyof Kernels & keyof HostJobs

const REFERENCE: { readonly [V in Verb]: (job: HostJobs[V]) => void } = {
  rotate,
  encode,
  query,
  coarseSigns,
  coarseCollision,
  select,
  rerank,
  topk,
  attend,
  merge,
  dense,
  store,
  lookup,
  norm,
  rope,
  linear,
  gate,
}

/** What each verb writes. */
const OUTPUTS: { readonly [V in Verb]: ReadonlyArray<keyof HostJobs[V] & string> } = {
  rotate: ['y', 'exponents'],
  encode: ['summary'],
  query: ['chosen', 'y', 'scales', 't'],
  coarseSigns: ['scores'],
  coarseCollision: ['scores'],
  select: ['ids'],
  rerank: ['estimates'],
  topk: ['topIds', 'topValues'],
  attend: ['partials'],
  merge: ['output', 'lse'],
  dense: ['output', 'lse'],
  store: ['rows', 'refused'],
  lookup: ['output'],
  norm: ['output'],
  rope: ['output'],
  linear: ['output'],
  gate: ['output'],
}

const CANONICAL: SummaryLayout = { block: 1, align: 1 }

/** The parts of a summary that are buffers. */
const PARTS = ['signs', 'magnitudes', 'weights', 'scales', 'norms', 'normExp', 'counts'] as const

/** A canonical summary whose planes are stale memory; norms and counts stand where a zone starts. */
export function emptySummary(
  heads: number,
  keys: number,
  D: number,
  options: { norms?: boolean; counts?: boolean } = {},
): Summary<Bytes> {
  const cap = Math.max(16, Math.ceil(keys / 16) * 16)
  const size = summaryParts(heads, cap, D, CANONICAL)
  const normExp = new Bytes(size.normExp)
  normExp.i32.fill(NO_EXPONENT)
  return {
    cap,
    D,
    layout: CANONICAL,
    signs: poisoned(size.signs),
    magnitudes: poisoned(size.magnitudes),
    weights: poisoned(size.weights),
    scales: poisoned(size.scales),
    ...(options.norms ? { norms: poisoned(size.norms), normExp } : {}),
    ...(options.counts ? { counts: new Bytes(size.counts) } : {}),
  }
}

/** The same codes in another layout; `heads` from the buffers. Parts that have one layout only are copied. */
export function relayout(from: Summary<Bytes>, layout: SummaryLayout): Summary<Bytes> {
  const heads = from.scales.bytes / 2 / from.cap
  const size = summaryParts(heads, from.cap, from.D, layout)
  const copies = Object.fromEntries(PARTS.flatMap((part) => (from[part] ? [[part, Bytes.of(from[part].u8)]] : [])))
  const to: Summary<Bytes> = {
    ...from,
    ...copies,
    layout,
    signs: new Bytes(size.signs),
    magnitudes: new Bytes(size.magnitudes),
    weights: new Bytes(size.weights),
  }
  for (let h = 0; h < heads; h++)
    for (let n = 0; n < from.cap; n++)
      for (let b = 0; b < from.D / 8; b++) {
        to.signs.u8[signByte(to, h, n, b)] = from.signs.u8[signByte(from, h, n, b)]
        to.weights.u8[weightByte(to, h, n, b)] = from.weights.u8[weightByte(from, h, n, b)]
        for (let p = 0; p < 3; p++)
          to.magnitudes.u8[magnitudeByte(to, h, n, p, b)] = from.magnitudes.u8[magnitudeByte(from, h, n, p, b)]
      }
  return to
}

/** What a verb may write. */
type Output = Bytes | Rows<Bytes> | Summary<Bytes>

function isRows(value: object): value is Rows<Bytes> {
  return 'buf' in value
}

function isSummary(value: object): value is Summary<Bytes> {
  return 'magnitudes' in value && 'layout' in value
}

/** Host jobs on a backend. A host buffer or summary is uploaded once, whole, and stays the same one across calls. */
export class Stage {
  readonly #backend: Backend
  readonly #buffers = new Map<Bytes, Buf>()
  readonly #summaries = new Map<Summary<Bytes>, Summary>()

  constructor(backend: Backend) {
    this.#backend = backend
  }

  /** One call of a verb. */
  async run<V extends Verb>(verb: V, jobs: readonly HostJobs[V][]): Promise<void> {
    const uploaded: unknown[] = []
    for (const job of jobs) uploaded.push(await this.#put(job))
    const call = this.#backend[verb] as (jobs: readonly unknown[]) => void
    call(uploaded)
  }

  /** The job with what the backend now holds in place of its outputs, canonical. */
  async result<V extends Verb>(verb: V, job: HostJobs[V]): Promise<HostJobs[V]> {
    const out: Record<string, unknown> = {}
    for (const name of OUTPUTS[verb]) out[name] = await this.#get(job[name] as Output)
    return { ...job, ...out }
  }

  free(): void {
    this.#backend.free([...this.#buffers.values()])
    this.#buffers.clear()
    this.#summaries.clear()
  }

  async #put(value: unknown): Promise<unknown> {
    if (value instanceof Bytes) return this.#buffers.get(value) ?? (await this.#upload(value))
    if (value === null || typeof value !== 'object' || Array.isArray(value)) return value
    if (isSummary(value)) {
      const known = this.#summaries.get(value)
      if (known) return known
      const summary = (await this.#putFields(relayout(value, this.#backend.layout))) as unknown as Summary
      this.#summaries.set(value, summary)
      return summary
    }
    return this.#putFields(value)
  }

  async #putFields(value: object): Promise<Record<string, unknown>> {
    const out: Record<string, unknown> = {}
    for (const [name, field] of Object.entries(value)) out[name] = name === 'layout' ? field : await this.#put(field)
    return out
  }

  async #upload(bytes: Bytes): Promise<Buf> {
    const [buf] = await this.#backend.alloc([{ label: 'test', bytes: bytes.bytes }])
    this.#backend.write(buf, 0, bytes.u8)
    this.#buffers.set(bytes, buf)
    return buf
  }

  async #get(host: Output): Promise<Output> {
    if (host instanceof Bytes) return this.#download(this.#buffers.get(host)!)
    if (isRows(host)) return { ...host, buf: await this.#download(this.#buffers.get(host.buf)!) }
    const device = this.#summaries.get(host)!
    const parts: Record<string, Bytes> = {}
    for (const part of PARTS) if (device[part]) parts[part] = await this.#download(device[part])
    return relayout({ ...device, ...parts } as Summary<Bytes>, CANONICAL)
  }

  async #download(buf: Buf): Promise<Bytes> {
    return Bytes.of(await this.#backend.read(buf, 0, buf.bytes))
  }
}

/** A batch in one call; outputs as the backend left them. */
export async function runOn<V extends Verb>(backend: Backend, verb: V, jobs: readonly HostJobs[V][]) {
  const stage = new Stage(backend)
  try {
    await stage.run(verb, jobs)
    const results: HostJobs[V][] = []
    for (const job of jobs) results.push(await stage.result(verb, job))
    return results
  } finally {
    stage.free()
  }
}

/** One job on a backend. */
export async function runOne<V extends Verb>(backend: Backend, verb: V, job: HostJobs[V]): Promise<HostJobs[V]> {
  return (await runOn(backend, verb, [job]))[0]
}

/** The pure reference kernel on copies of the outputs: the job given stays as it is. */
export function oracle<V extends Verb>(verb: V, job: HostJobs[V]): HostJobs[V] {
  const out: Record<string, unknown> = {}
  for (const name of OUTPUTS[verb]) {
    const value = job[name] as Output
    if (value instanceof Bytes) out[name] = Bytes.of(value.u8)
    else out[name] = isRows(value) ? { ...value, buf: Bytes.of(value.buf.u8) } : relayout(value, CANONICAL)
  }
  const copy = { ...job, ...out }
  REFERENCE[verb](copy)
  return copy
}
