import type { Buf } from './bytes.ts'
import type { SummaryLayout } from './codec/codec.ts'
import type { AttendJob } from './kernels/attend.ts'
import type { CoarseCollisionJob } from './kernels/coarse-collision.ts'
import type { CoarseSignsJob } from './kernels/coarse-signs.ts'
import type { DenseJob } from './kernels/dense.ts'
import type { EncodeJob } from './kernels/encode.ts'
import type { GateJob } from './kernels/gate.ts'
import type { LinearJob } from './kernels/linear.ts'
import type { LookupJob } from './kernels/lookup.ts'
import type { MergeJob } from './kernels/merge.ts'
import type { NormJob } from './kernels/norm.ts'
import type { QueryJob } from './kernels/query.ts'
import type { RerankJob } from './kernels/rerank.ts'
import type { RopeJob } from './kernels/rope.ts'
import type { RotateJob } from './kernels/rotate.ts'
import type { SelectJob } from './kernels/select.ts'
import type { StoreJob } from './kernels/store.ts'
import type { TopkJob } from './kernels/topk.ts'

export type { Buf } from './bytes.ts'

/** The kernels as verbs. Each takes the jobs of a batch; jobs of one call must not write what another reads. */
export interface Kernels {
  rotate(jobs: readonly RotateJob[]): void
  encode(jobs: readonly EncodeJob[]): void
  query(jobs: readonly QueryJob[]): void
  coarseSigns(jobs: readonly CoarseSignsJob[]): void
  coarseCollision(jobs: readonly CoarseCollisionJob[]): void
  select(jobs: readonly SelectJob[]): void
  rerank(jobs: readonly RerankJob[]): void
  topk(jobs: readonly TopkJob[]): void
  attend(jobs: readonly AttendJob[]): void
  merge(jobs: readonly MergeJob[]): void
  dense(jobs: readonly DenseJob[]): void
  store(jobs: readonly StoreJob[]): void
  lookup(jobs: readonly LookupJob[]): void
  norm(jobs: readonly NormJob[]): void
  rope(jobs: readonly RopeJob[]): void
  linear(jobs: readonly LinearJob[]): void
  gate(jobs: readonly GateJob[]): void
}

/** One request of `alloc`. */
export interface AllocRequest {
  readonly label: string
  readonly bytes: number
  /** Requests of one call with the same name may be laid side by side, so that a batch over them runs as one. */
  readonly together?: string
}

/** A range of a buffer. Offset and bytes are multiples of 4. */
export interface ReadPart {
  readonly buf: Buf
  readonly offset: number
  readonly bytes: number
}

/** Ranges that a recording copies aside. */
export interface LaterRead {
  /** Copies of them, in their order, once the commands have run; to be called once, after the submit. */
  read(): Promise<Uint8Array[]>
  /** Instead of `read`, where the commands are not submitted. */
  drop(): void
}

/** What only a GPU can offer. */
export interface GpuRecorder {
  readonly device: GPUDevice
  /** Bytes of a buffer that a kernel sees at once. Heads with more rows than that are cut; no other axis of a head is. */
  readonly reach: number
  /**
   * Records the verbs called by `body` into the caller's encoder, outside any pass of it; nothing is submitted. Inside
   * `body`, recordings into the same encoder join this one.
   * @returns frees the recording's few KiB of job words: to be called after the submit. With true, where the commands were
   * submitted for sure, their memory serves the next recordings.
   */
  recordInto(encoder: GPUCommandEncoder, body: () => void): (submitted?: boolean) => void
  /** Inside `body` of a recording: copies ranges, as they are by then, to be read after the submit. */
  readLater(parts: readonly ReadPart[]): LaterRead
  /** Submits what verbs have recorded outside `recordInto` so far. */
  flush(): void
  /** A caller's GPUBuffer, or a range of it from a multiple of 16, as a Buf. It stays the caller's. */
  wrap(buffer: GPUBuffer, offset?: number, bytes?: number): Buf
  /** Where a Buf of this backend lies, for `wrap`, commands of one's own, and sessions that record. */
  range(buf: Buf): { readonly buffer: GPUBuffer; readonly offset: number }
}

/**
 * What a machine must offer to run this package: memory and seventeen kernels, twelve for the cache and five
 * for a model on top. Calls take effect in call order;
 * only `alloc`, `read` and `readAll` wait. Offsets and sizes of `write`, `copy` and `read` are multiples of 4 bytes.
 */
export interface Backend extends Kernels {
  readonly name: 'reference' | 'wasm' | 'webgpu'
  /** One line for people: device and path taken. */
  readonly description: string
  readonly layout: SummaryLayout
  /** Zeroed memory, all of it or none: `out_of_memory` names the bytes asked. Sizes are rounded up to 4. */
  alloc(requests: readonly AllocRequest[]): Promise<Buf[]>
  free(buffers: readonly Buf[]): void
  write(buf: Buf, offset: number, data: Uint8Array): void
  copy(src: Buf, srcOffset: number, dst: Buf, dstOffset: number, bytes: number): void
  /** Zeroes a whole buffer. */
  clear(buf: Buf): void
  /** A copy of the bytes once everything called before has happened. */
  read(buf: Buf, offset: number, bytes: number): Promise<Uint8Array>
  /** The same of several ranges in one round trip, in their order. */
  readAll(parts: readonly ReadPart[]): Promise<Uint8Array[]>
  /** Into how many parts attention over `positions` positions is best cut; never falls as `positions` grows. */
  parts(positions: number, heads: number): number
  /** Where a device can fail: throws `device_lost` as soon as it is known to have. */
  check?(): void
  /** Where there are pipelines to compile: those that `verbs` would use, all at once. Nothing is run or remembered. */
  warm?(verbs: () => void): Promise<void>
  /** Where there is a GPU: recording into a caller's commands, on a caller's buffers. */
  readonly recorder?: GpuRecorder
  /** Bytes allocated now. */
  allocated(): number
  /** Where that is known: the most bytes that `alloc` gives in all, and in one buffer. */
  limits?(): { readonly total: number; readonly buffer: number }
  dispose(): void
}
