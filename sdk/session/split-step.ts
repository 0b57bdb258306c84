import {
  type AttendItem,
  attendTo,
  bring,
  type Found,
  idsOf,
  isAway,
  placed,
  retrieveStep,
} from '../attend/attention.ts'
import type { Backend, Buf, GpuRecorder, LaterRead } from '../backend.ts'
import { u32View } from '../bytes.ts'
import type { Cache } from '../cache/cache.ts'
import { CallQueue } from '../calls.ts'
import { describe, ParisError } from '../errors.ts'
import { Arrival } from './arrival.ts'
import { encodeAppend } from './record.ts'
import {
  attentionBuffers,
  checkBuffers,
  checkKeysValues,
  type GpuAttention,
  type GpuKeysValues,
  type GpuTensor,
  type Range,
  type Recording,
  ready,
} from './record-checks.ts'
import { reserveRoom } from './reserve.ts'
import { disposedError, type SessionState } from './state.ts'
import { auditRetrieval } from './steps.ts'

/** What one session's part of a split step reads: queries [Hq, d] f32 of its latest token, and that token where it is new. */
export interface GpuStep {
  readonly queries: GpuTensor
  /** Keys and values [H, 1, d] of the token, appended first. */
  readonly append?: GpuKeysValues
}

/** One session's part. */
interface Part {
  readonly state: SessionState
  readonly layer: number
  readonly cache: Cache
  readonly queries: Range
  /** A new token: of a session whose rows are on the host, or on the device. */
  readonly arrival?: Arrival
  readonly append?: () => void
}

/**
 * A decode step of one layer in two submits, with `fetch` between them: what reads rows on the host has to wait for the
 * choice of them. The second half may be recorded before `fetch`, but must be submitted after it.
 */
export class SplitStep {
  private items: readonly AttendItem[] = []
  private found: readonly Found[] = []
  private later: LaterRead | undefined
  private readonly releases: ((submitted?: boolean) => void)[] = []

  /** @internal */
  constructor(
    private readonly parts: readonly Part[],
    private readonly backend: Backend,
    private readonly recorder: GpuRecorder,
    private readonly where: string,
  ) {}

  /** @internal Records appending and retrieval. */
  begin(encoder: GPUCommandEncoder): void {
    this.record(encoder, () => {
      for (const { append } of this.parts) append?.()
      const jobs = this.parts.flatMap(({ arrival }) => arrival?.jobs() ?? [])
      const reads = jobs.flatMap((job) => job.reads)
      if (jobs.length > 0) this.backend.store(jobs.flatMap((job) => job.store))
      const encode = jobs.flatMap((job) => job.encode)
      if (encode.length > 0) this.backend.encode(encode)
      this.items = this.parts.map((part) => this.itemOf(part))
      this.found = retrieveStep(this.backend, this.items)
      reads.push(...this.found.filter(isAway).map(idsOf))
      if (reads.length > 0) this.later = this.recorder.readLater(reads)
    })
  }

  /**
   * Waits for what was retrieved and brings rows that are on the host; after it the appended tokens count. Once, after the
   * submit of the first half.
   * @throws ParisError `not_finite` for keys or values that are NaN, Inf or beyond the store, `busy` where a session was
   * appended to meanwhile, `disposed`, `device_lost`, and what a session's pages throw; then nothing was appended, and the
   * second half must not be submitted
   */
  async fetch(): Promise<void> {
    await CallQueue.runAll(
      this.parts.map(({ state }) => state.queue),
      async () => {
        if (this.parts.some(({ state }) => state.disposed)) throw disposedError(this.where)
        await this.fetchNow()
      },
    )
  }

  /** @internal `fetch` inside the queues. */
  async fetchNow(): Promise<void> {
    const { later, parts } = this
    this.later = undefined
    if (later) await this.arrive(await later.read())
    // Rows may lie in commands of the backend's own: those come before the second half.
    this.recorder.flush()
    for (const { state } of parts) state.calls.attend++
  }

  private async arrive(read: readonly Uint8Array[]): Promise<void> {
    const arrivals = this.parts.flatMap(({ arrival }) => arrival ?? [])
    for (const [i, arrival] of arrivals.entries()) arrival.take(read[2 * i], read[2 * i + 1], this.where)
    let next = 2 * arrivals.length
    try {
      for (const arrival of arrivals) await arrival.keep()
      for (const one of this.found.filter(isAway)) await bring(this.backend, one, u32View(read[next++]))
      for (const { item } of this.found) await auditRetrieval(this.stateOf(item), item)
    } catch (error) {
      for (const arrival of arrivals) await arrival.undo()
      throw error
    }
  }

  /**
   * Records attention to what was retrieved, to be submitted after `fetch`.
   * @param outputs output [Hq, d] f32 and lse [Hq] f32 of each session, in their order
   * @throws ParisError `bad_shape`, `bad_dtype`, `device_lost`; then nothing was recorded
   */
  encodeAttend(encoder: GPUCommandEncoder, outputs: ReadonlyArray<Omit<GpuAttention, 'queries'>>): void {
    const wanted = this.parts.map(({ state, queries }, i) => {
      const input = { ...outputs?.[i], queries } as GpuAttention
      return checkBuffers(this.where, attentionBuffers(state, input, 1))
    })
    this.record(encoder, () => {
      const items = this.items.map((item, i) => {
        const [, output, lse] = wanted[i].map((range) => this.wrap(range))
        return { ...item, output, lse }
      })
      attendTo(this.backend, items, this.found.map(placed))
    })
  }

  /** Frees what the recordings took, once both halves have been submitted or will not be. @param submitted whether they have */
  release(submitted = false): void {
    this.later?.drop()
    this.later = undefined
    for (const free of this.releases.splice(0)) free(submitted)
  }

  private record(encoder: GPUCommandEncoder, body: () => void): void {
    this.releases.push(this.recorder.recordInto(encoder, body))
  }

  private itemOf({ state, layer, cache, queries, arrival }: Part) {
    const { config, scratch } = state
    const rows = cache.layer(layer)
    const length = rows.length + (arrival ? 1 : 0)
    return { config, scratch, rotation: cache.rotation, layer: { ...rows, length }, queries: this.wrap(queries) }
  }

  private stateOf({ scratch }: AttendItem): SessionState {
    return this.parts.find(({ state }) => state.scratch === scratch)!.state
  }

  private wrap({ buffer, offset, bytes }: Range): Buf {
    return this.recorder.wrap(buffer, offset, bytes)
  }
}

/** See `Engine.encodeRetrieveBatch`. @param queued whether this is a call of the session itself */
export function encodeRetrieveAll(
  encoder: GPUCommandEncoder,
  items: readonly { readonly state: SessionState; readonly layer: number; readonly input: GpuStep }[],
  where: string,
  queued = false,
): SplitStep {
  if (new Set(items.map(({ state }) => state)).size < items.length) {
    const fix = 'Record its layers one after the other.'
    throw new ParisError('bad_config', { where, got: 'a session twice', want: 'each session once', fix })
  }
  if (items.length === 0)
    throw new ParisError('bad_config', {
      where,
      got: 'no session',
      want: 'at least one',
      fix: 'Record steps of sessions that there are.',
    })
  const { backend } = items[0].state
  const parts = items.map(({ state, layer, input }) => partOf({ state, encoder, layer, where, queued }, input))
  const step = new SplitStep(parts, backend, backend.recorder as GpuRecorder, where)
  try {
    step.begin(encoder)
  } catch (error) {
    step.release()
    throw error
  }
  return step
}

/** See `Session.attendFrom`. */
export async function attendFrom(state: SessionState, layer: number, input: GpuAttention & GpuStep): Promise<void> {
  const where = 'session.attendFrom'
  return state.run(where, async () => {
    if (state.backend.recorder) checkBuffers(where, attentionBuffers(state, input, 1))
    await reserveRoom(state, input?.append ? 1 : 0)
    const { recorder } = state.backend
    const encode = () => recorder?.device.createCommandEncoder() as GPUCommandEncoder
    const [first, second] = [encode(), encode()]
    const step = encodeRetrieveAll(first, [{ state, layer, input }], where, true)
    let submitted = false
    try {
      recorder?.device.queue.submit([first.finish()])
      step.encodeAttend(second, [input])
      await step.fetchNow()
      recorder?.device.queue.submit([second.finish()])
      submitted = true
    } finally {
      step.release(submitted)
    }
  })
}

/** Checks one session's part. */
function partOf(call: Recording, input: GpuStep): Part {
  const { state, layer, where } = call
  const { cache, recorder } = ready(call, true)
  const wanted = attentionBuffers(state, input as GpuAttention, 1).slice(0, 1)
  const { append } = input ?? {}
  const part = { state, layer, cache }
  if (!append) {
    const [queries] = checkBuffers(where, wanted)
    checkPlaces(call, cache, 0)
    return { ...part, queries }
  }
  if (append.tokens !== 1) {
    const got = `${describe(append.tokens)} tokens`
    const fix = 'Append what comes before it first.'
    throw new ParisError('bad_shape', { where: `${where}(append)`, got, want: 'the latest one', fix })
  }
  const { dtype, bufs } = checkKeysValues(call, append, wanted)
  const [keys, values, queries] = bufs
  checkPlaces(call, cache, 1)
  if (!cache.layer(layer).offload) return { ...part, queries, append: () => void encodeAppend(call, append) }
  const wrap = ({ buffer, offset, bytes }: Range) => recorder.wrap(buffer, offset, bytes)
  return {
    ...part,
    queries,
    arrival: new Arrival(state, layer, cache, { keys: wrap(keys), values: wrap(values), dtype }),
  }
}

/** @throws ParisError `offload_needs_submit` where rows have to come from the host first */
function checkPlaces({ layer, where }: Recording, cache: Cache, tokens: number): void {
  const { offload, length, stale } = cache.layer(layer)
  if (!offload || (!stale && offload.hasRoom(length, tokens))) return
  throw new ParisError('offload_needs_submit', {
    where,
    got: 'a layer whose latest rows have to be brought to the device, or that has no room on the host',
    want: 'one that is ready',
    fix: 'Await session.reserve(1) before the recording.',
  })
}
