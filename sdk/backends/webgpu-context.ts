import type { ProgramName, Spec } from '../../wgsl/programs.ts'
import { GpuBuf, type GpuMemory, newSlab } from './webgpu-memory.ts'
import { keyOf } from './webgpu-pipelines.ts'
import type { Recorder } from './webgpu-recorder.ts'
import { Scratch } from './webgpu-scratch.ts'
import type { Binding, Task } from './webgpu-windows.ts'

/** The histogram that `select` needs, counted beside the scores it belongs to. */
export interface Histogram {
  readonly buf: GpuBuf
  readonly words: number
  /** Holds counts that a later use must clear. */
  dirty: boolean
  /** What is counted now; undefined once the scores may have changed. */
  ready: string | undefined
  /** What `warm` saw the coarse kernel count. */
  noted?: string
  /** The recording that counted it. */
  recording: number
  /** Was dirty when a caller's recording began with it, which may never run. */
  unsure: boolean
}

const tasksOf = (task: Task | Task[]) => (Array.isArray(task) ? task : [task])

/** What the kernels share: the recorder, private working memory, and stand-ins for absent buffers. */
export class GpuContext {
  readonly recorder: Recorder
  private readonly scratch: Scratch
  /** Stands in for an absent read-only buffer. */
  readonly none: Binding
  /** Stands in for an absent written buffer. */
  readonly sink: Binding
  /** Bytes of workgroup memory, and invocations of a workgroup, that specializations may use. */
  readonly shared: number
  readonly invocations: number
  /** Workgroups that fill the device. */
  readonly slots: number
  /** Threads of a subgroup that stand side by side; 0 where there are none to rely on. */
  readonly lanes: number
  /** Read by programs that write `scratch`: WebGPU wants those in different GPUBuffers. */
  private readonly tableScratch: Scratch
  private readonly histograms = new Map<GpuBuf, Histogram>()
  private readonly attached = new Map<GpuBuf, { scratch: Scratch; buf: GpuBuf }[]>()
  private readonly needs = new Map<GpuBuf, GpuBuf>()
  private readonly tables = new Map<GpuBuf, GpuBuf>()
  private readonly spills = new Map<GpuBuf, GpuBuf>()

  constructor(device: GPUDevice, recorder: Recorder, memory: GpuMemory, slots: number, lanes: number) {
    this.recorder = recorder
    this.scratch = new Scratch(device, memory)
    this.tableScratch = new Scratch(device, memory)
    this.slots = slots
    this.lanes = lanes
    this.shared = device.limits.maxComputeWorkgroupStorageSize
    this.invocations = Math.min(device.limits.maxComputeInvocationsPerWorkgroup, device.limits.maxComputeWorkgroupSizeX)
    const standIn = () => ({ buf: new GpuBuf(newSlab(device, 'stand-in', 256), 0, 256) })
    this.none = standIn()
    this.sink = standIn()
  }

  /** Runs the jobs of a program, those of one specialization together; `undefined` leaves a job out. */
  each<J>(
    name: ProgramName,
    jobs: readonly J[],
    plan: (job: J) => { spec: Spec; task: Task | Task[] } | undefined,
  ): void {
    if (jobs.length === 1) {
      const planned = plan(jobs[0])
      if (planned) this.recorder.run(keyOf(name, planned.spec), name, planned.spec, tasksOf(planned.task))
      return
    }
    const bySpec = new Map<string, { spec: Spec; tasks: Task[] }>()
    for (const job of jobs) {
      const planned = plan(job)
      if (!planned) continue
      const key = keyOf(name, planned.spec)
      const known = bySpec.get(key) ?? { spec: planned.spec, tasks: [] }
      known.tasks.push(...tasksOf(planned.task))
      bySpec.set(key, known)
    }
    for (const [key, { spec, tasks }] of bySpec) this.recorder.run(key, name, spec, tasks)
  }

  /** Private memory that lives as long as `owner`. */
  private beside(owner: GpuBuf, bytes: number, scratch = this.scratch): { buf: GpuBuf; dirty: boolean } {
    const taken = scratch.take(bytes)
    this.attached.set(owner, [...(this.attached.get(owner) ?? []), { scratch, buf: taken.buf }])
    return taken
  }

  /** The histogram memory of a scores buffer, at least `words` long. */
  histogram(scores: GpuBuf, words: number): Histogram {
    const known = this.histograms.get(scores)
    if (known && known.words >= words) return known
    const { buf, dirty } = this.beside(scores, words * 4)
    if (dirty) this.recorder.fill(buf, new Uint8Array(buf.bytes))
    const fresh: Histogram = { buf, words, dirty: false, ready: undefined, recording: 0, unsure: false }
    this.histograms.set(scores, fresh)
    return fresh
  }

  /** Vote tables of a collision job, beside its scores. */
  table(scores: GpuBuf, bytes: number): GpuBuf {
    return this.kept(this.tables, scores, bytes, this.tableScratch)
  }

  /** Survivors of a top-K too wide for workgroup memory, beside its ids. */
  spill(topIds: GpuBuf, bytes: number): GpuBuf {
    return this.kept(this.spills, topIds, bytes, this.scratch)
  }

  private kept(map: Map<GpuBuf, GpuBuf>, owner: GpuBuf, bytes: number, scratch: Scratch): GpuBuf {
    const known = map.get(owner)
    if (known && known.bytes >= bytes) return known
    const { buf } = this.beside(owner, bytes, scratch)
    map.set(owner, buf)
    return buf
  }

  /** [H] i32, the exponents asked for by new keys. */
  normNeed(normExp: GpuBuf, heads: number): GpuBuf {
    const known = this.needs.get(normExp)
    if (known && known.bytes >= heads * 4) return known
    if (this.recorder.collecting) return this.sink.buf
    const { buf } = this.beside(normExp, heads * 4)
    this.recorder.fill(buf, new Uint8Array(new Int32Array(heads).fill(-1000).buffer))
    this.needs.set(normExp, buf)
    return buf
  }

  /** The bytes of a buffer changed otherwise than by a kernel. */
  touched(buf: GpuBuf): void {
    const known = this.histograms.get(buf)
    if (known) known.ready = undefined
  }

  /** A buffer goes away, and what was kept beside it. True when a GPUBuffer was destroyed. */
  forget(buf: GpuBuf): boolean {
    let destroyed = false
    for (const kept of this.attached.get(buf) ?? []) destroyed = kept.scratch.give(kept.buf) || destroyed
    this.attached.delete(buf)
    this.histograms.delete(buf)
    for (const map of [this.needs, this.tables, this.spills]) map.delete(buf)
    return destroyed
  }

  dispose(): void {
    for (const scratch of [this.scratch, this.tableScratch]) scratch.dispose()
    for (const { buf } of [this.none, this.sink]) buf.gpu.destroy()
  }
}
