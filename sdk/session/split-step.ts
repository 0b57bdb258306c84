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
import { ParisError } from '../errors.ts'
import type { Arrival } from './arrival.ts'
import {
  attentionBuffers,
  checkBuffers,
  checkEncoder,
  type GpuAttention,
  type GpuKeysValues,
  type GpuTensor,
  type Range,
} from './record-checks.ts'
import { disposedError, type SessionState } from './state.ts'
import { auditRetrieval } from './steps.ts'

/** What one session's part of a split step reads: queries [Hq, d] f32 of its latest token, and that token where it is new. */
export interface GpuStep {
  readonly queries: GpuTensor
  /** Keys and values [H, 1, d] of the token, appended first; of usage COPY_SRC too where rows are on the host. */
  readonly append?: GpuKeysValues
}

/** One session's part. */
export interface Part {
  readonly state: SessionState
  readonly layer: number
  readonly cache: Cache
  readonly queries: Range
  /** A new token: of a session whose rows are on the host, or on the device. */
  readonly arrival?: Arrival
  readonly append?: () => void
}

/** How a layer is when a step has been recorded: its tokens and, where rows are on the host, the place of the next one. */
interface Mark {
  readonly length: number
  readonly place?: number
}

function markOf({ cache, layer }: Part): Mark {
  const { length, offload } = cache.layer(layer)
  return { length, place: offload?.rowOf(length) }
}

/**
 * A decode step of one layer in two submits, with `fetch` between them: what reads rows on the host has to wait for the
 * choice of them. The second half may be recorded before `fetch`, but must be submitted after it. Submit the first half
 * before any other call of its sessions, and the second before whatever is called after `fetch`; in between they may be
 * read, but neither be appended to nor truncated nor make room.
 */
export class SplitStep {
  private items: readonly AttendItem[] = []
  private found: readonly Found[] = []
  private later: LaterRead | undefined
  /** What the recording counts on, by part. */
  private marks: readonly Mark[] = []
  private readonly releases: ((submitted?: boolean) => void)[] = []
  private fetched = false
  private released = false

  /** @internal */
  constructor(
    private readonly parts: readonly Part[],
    private readonly backend: Backend,
    private readonly recorder: GpuRecorder,
    private readonly where: string,
  ) {}

  /** @internal Records appending and retrieval. */
  begin(encoder: GPUCommandEncoder): void {
    const before = this.parts.map(({ state, layer }) => ({ length: state.length(layer), calls: state.calls.append }))
    try {
      this.record(encoder, () => this.beginNow())
    } catch (error) {
      for (const [i, { state, cache, layer }] of this.parts.entries()) {
        cache.layer(layer).length = before[i].length
        state.calls.append = before[i].calls
      }
      throw error
    }
    this.marks = this.parts.map(markOf)
  }

  private beginNow(): void {
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
  }

  /**
   * Waits for what was retrieved and brings rows that are on the host; after it the appended tokens count. Once, after the
   * submit of the first half and before `release`; a second time it throws `bad_config`, and nothing changes.
   * @throws ParisError `not_finite` for keys or values that are NaN, Inf or beyond the store, of sessions whose rows are on
   * the host (others store 0, as after `encodeAppend`); `busy` where a layer is no longer as it was recorded, `disposed`,
   * `device_lost`, and what a session's pages throw; then nothing was appended, and the second half must not be submitted
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
    if (this.fetched || this.released) throw this.over()
    this.fetched = true
    const arrivals = this.parts.filter(({ arrival }) => arrival)
    for (const { state, layer } of arrivals) state.underway.set(layer, state.length(layer))
    try {
      this.checkMarks()
      const { later } = this
      this.later = undefined
      await this.arrive((await later?.read()) ?? [])
      // Rows may lie in commands of the backend's own: those come before the second half.
      this.recorder.flush()
    } catch (error) {
      for (const [i, part] of this.parts.entries()) await takeBack(part, this.marks[i])
      throw error
    } finally {
      for (const { state, layer } of arrivals) state.underway.delete(layer)
    }
    for (const { state } of this.parts) state.calls.attend++
  }

  private over(): ParisError {
    return new ParisError('bad_config', {
      where: this.where,
      got: `a step that was ${this.released ? 'released' : 'fetched'} before`,
      want: 'one fetch a step, and its release last',
      fix: 'Record the step again.',
    })
  }

  /** @throws ParisError `busy` where a layer is not as the recording left it, or a token of a later recording lies there */
  private checkMarks(): void {
    for (const [i, part] of this.parts.entries()) {
      const { length, place } = markOf(part)
      const mark = this.marks[i]
      const latest = part.arrival?.latest ?? true
      if (part.state.cache === part.cache && length === mark.length && place === mark.place && latest) continue
      throw new ParisError('busy', {
        where: this.where,
        got: length === mark.length ? 'rows in other places, or a later recording' : `${length} tokens`,
        want: `the ${mark.length} tokens of the recording, where they were`,
        fix: 'Between a recording and its fetch append nothing to its sessions, and neither truncate nor reserve.',
      })
    }
  }

  private async arrive(read: readonly Uint8Array[]): Promise<void> {
    const arrivals = this.parts.flatMap(({ arrival }) => arrival ?? [])
    for (const [i, arrival] of arrivals.entries()) arrival.take(read[2 * i], read[2 * i + 1], this.where)
    let next = 2 * arrivals.length
    for (const arrival of arrivals) await arrival.keep()
    for (const one of this.found.filter(isAway)) await bring(this.backend, one, u32View(read[next++]))
    for (const { item } of this.found) await auditRetrieval(this.stateOf(item), item)
  }

  /**
   * Records attention to what was retrieved, to be submitted after `fetch`.
   * @param outputs output [Hq, d] f32 and lse [Hq] f32 of each session, in their order
   * @throws ParisError `bad_shape`, `bad_dtype`, `bad_config` after `release`, `disposed`, `device_lost`; then nothing was
   * recorded
   */
  encodeAttend(encoder: GPUCommandEncoder, outputs: ReadonlyArray<Omit<GpuAttention, 'queries'>>): void {
    checkEncoder(encoder, this.where)
    if (this.released) throw this.over()
    if (this.parts.some(({ state, cache }) => state.cache !== cache)) throw disposedError(this.where)
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
    this.released = true
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

/** After a failed fetch: takes back the token where it counts. */
async function takeBack({ state, cache, layer, arrival, append }: Part, { length }: Mark): Promise<void> {
  try {
    await arrival?.undo()
    if (!append || state.cache !== cache || cache.layer(layer).length !== length) return
    for (const snapshot of state.snapshots) if (length === snapshot.longest) snapshot.stale = true
    state.calls.append--
    await cache.truncate(layer, length - 1)
  } catch {
    // On a lost device going back fails as well; what failed first is what to tell.
  }
}
