import type { AllocRequest, Buf } from '../backend.ts'
import { ParisError } from '../errors.ts'

/** One GPUBuffer and how many of our buffers live in it. */
export interface Slab {
  readonly gpu: GPUBuffer
  readonly size: number
  readonly id: number
  /** Live buffers in it; destroyed at 0. A caller's own buffer is never destroyed here. */
  refs: number
  readonly owned: boolean
  /** Why the device did not give it; whoever lies in it awaits this. */
  refusal?: Promise<GPUError | undefined>
}

/** Memory of this backend: a range of a GPUBuffer that begins at a multiple of 256. */
export class GpuBuf implements Buf {
  readonly bytes: number
  readonly slab: Slab
  readonly offset: number

  constructor(slab: Slab, offset: number, bytes: number) {
    this.slab = slab
    this.offset = offset
    this.bytes = bytes
  }
  get gpu(): GPUBuffer {
    return this.slab.gpu
  }
}

/** Storage offsets of every device are multiples of this at most. */
export const ALIGN = 256
export const align = (bytes: number) => Math.ceil(bytes / ALIGN) * ALIGN
const sizeOf = (bytes: number) => align(Math.max(4, bytes))
const USAGE = 0x80 | 0x04 | 0x08 // STORAGE | COPY_SRC | COPY_DST: the names are globals only where a runtime sets them

let slabs = 0

export function newSlab(device: GPUDevice, label: string, size: number): Slab {
  return { gpu: device.createBuffer({ label, size, usage: USAGE }), size, id: ++slabs, refs: 0, owned: true }
}

/** What may be held beyond what was asked for: this share, at least these bytes. */
const SPARE = 0.04
const SPARE_BYTES = 1 << 19

/** Allocates, counts and destroys; all or nothing. */
export class GpuMemory {
  private readonly live = new Set<GpuBuf>()
  /** Bytes asked for, and bytes of the GPUBuffers that hold them and the kernels' working memory. */
  private used = 0
  private held = 0
  /** Bytes of the mapped buffers of large writes, which `alloc` takes precedence over. */
  private lent = 0
  private readonly device: GPUDevice
  private readonly limit: number

  constructor(device: GPUDevice, limit: number) {
    this.device = device
    this.limit = limit
  }

  async alloc(requests: readonly AllocRequest[]): Promise<GpuBuf[]> {
    for (const { label, bytes } of requests)
      if (bytes > this.device.limits.maxBufferSize)
        throw outOfMemory(`webgpu.alloc(${label})`, bytes, `at most ${this.device.limits.maxBufferSize} in one buffer`)
    const total = totalOf(requests)
    if (this.held + total > this.limit)
      throw outOfMemory('webgpu.alloc', total, `at most ${this.limit - this.held} more`)
    const created: GpuBuf[] = []
    let thrown: unknown
    try {
      this.create(requests, created)
    } catch (error) {
      thrown = error
    }
    const refusals = await Promise.all([...new Set(created.map(({ slab }) => slab.refusal))])
    const failure = thrown ?? refusals.find((refusal) => refusal)
    if (!failure) return created
    this.release(created)
    throw outOfMemory('webgpu.alloc', total, 'what the device has left', failure)
  }

  /** Requests of one `together` name share GPUBuffers, over calls too, as far as one binding reaches; others get their own. */
  private create(requests: readonly AllocRequest[], created: GpuBuf[]): void {
    const wanted = new Map<string, number>()
    for (const { together, bytes } of requests)
      if (together !== undefined) wanted.set(together, (wanted.get(together) ?? 0) + sizeOf(bytes))
    const all = requests.reduce((sum, { bytes }) => sum + sizeOf(bytes), 0)
    const shared = [...wanted.values()].reduce((sum, bytes) => sum + bytes, 0)
    const more = Math.min(7, Math.floor(this.spare(all) / 2 / shared))
    for (const { label, bytes, together } of requests) {
      const size = sizeOf(bytes)
      let room = together === undefined ? undefined : this.open.get(together)
      if (!room || room.slab.refs === 0 || room.at + size > room.slab.size) {
        const whole = together === undefined ? size : this.roomFor(size, (wanted.get(together) ?? size) + more * size)
        room = { slab: this.slab(label, whole), at: 0 }
        if (together !== undefined) this.open.set(together, room)
      }
      // A range is never given twice: what was recorded for its first owner may still run.
      const buffer = new GpuBuf(room.slab, room.at, Math.ceil(bytes / 4) * 4)
      room.at += size
      room.slab.refs++
      if (together !== undefined) wanted.set(together, (wanted.get(together) ?? size) - size)
      this.live.add(buffer)
      this.used += buffer.bytes
      created.push(buffer)
    }
  }
  private readonly open = new Map<string, { slab: Slab; at: number }>()

  /** Never more than one binding reaches. */
  private roomFor(size: number, wanted: number): number {
    const { maxStorageBufferBindingSize, maxBufferSize } = this.device.limits
    const reach = Math.floor(Math.min(maxStorageBufferBindingSize, maxBufferSize) / ALIGN) * ALIGN
    return Math.max(size, Math.min(reach, wanted))
  }

  /** Bytes that may be held beside what is asked for, once `coming` more are. */
  spare(coming = 0): number {
    const most = Math.max(SPARE_BYTES, SPARE * (this.held + coming)) - (this.held - this.used)
    return Math.max(0, Math.min(most, this.limit - this.held - this.lent - coming))
  }

  /** Whether mapped memory of so many bytes more lies within the limit. */
  admits(bytes: number): boolean {
    return this.held + this.lent + bytes <= this.limit
  }

  /** Whether mapped memory stands in the way of what may be allocated. */
  crowded(requests: readonly AllocRequest[]): boolean {
    return this.lent > 0 && !this.admits(totalOf(requests))
  }

  /** Counts mapped memory: within the limit, but not as allocated. */
  lend(bytes: number): void {
    this.lent += bytes
  }

  /** Counts working memory of the kernels, which nobody asked for. */
  hold(bytes: number): void {
    this.held += bytes
  }

  /** A caller's GPUBuffer, or a range of it, as a Buf; `free` only forgets it. It needs STORAGE, COPY_SRC and COPY_DST as used. */
  wrap(gpu: GPUBuffer, offset = 0, bytes = gpu.size - offset): GpuBuf {
    const known = this.wrapped.get(gpu) ?? { gpu, size: gpu.size, id: ++slabs, refs: 0, owned: false }
    this.wrapped.set(gpu, known)
    return new GpuBuf(known, offset, bytes)
  }
  private readonly wrapped = new WeakMap<GPUBuffer, Slab>()

  private slab(label: string, bytes: number): Slab {
    const size = Math.min(bytes, this.device.limits.maxBufferSize)
    this.device.pushErrorScope('out-of-memory')
    this.device.pushErrorScope('validation')
    let slab: Slab | undefined
    try {
      slab = newSlab(this.device, label, size)
    } finally {
      // Both at once: another call's scopes must not come between them.
      const errors = Promise.all([this.device.popErrorScope(), this.device.popErrorScope()])
      const refusal = errors.then((all) => all.find((error) => error !== null) ?? undefined)
      if (slab) slab.refusal = refusal
      else refusal.catch(() => {})
    }
    this.held += size
    return slab
  }

  /** True when a GPUBuffer was destroyed. */
  release(buffers: readonly GpuBuf[]): boolean {
    let destroyed = false
    for (const buffer of buffers) {
      if (!this.live.delete(buffer)) continue
      this.used -= buffer.bytes
      if (--buffer.slab.refs > 0 || !buffer.slab.owned) continue
      buffer.slab.gpu.destroy()
      this.held -= buffer.slab.size
      destroyed = true
    }
    return destroyed
  }

  /**
   * Bytes of all GPUBuffers but those through which data travels: a few KiB for jobs and results, and at most 64 MiB of
   * mapped memory for large writes, which a GPU of its own has in the host's; it goes when all else has been freed.
   */
  allocated(): number {
    return this.held
  }

  dispose(): void {
    this.release([...this.live])
  }
}

const totalOf = (requests: readonly AllocRequest[]) =>
  requests.reduce((sum, { bytes }) => sum + Math.ceil(bytes / 4) * 4, 0)

function outOfMemory(where: string, bytes: number, want: string, cause?: unknown): ParisError {
  return new ParisError('out_of_memory', {
    where,
    got: `${bytes} bytes`,
    want,
    fix: 'Lower capacity, layers or heads, or take a 16-bit store.',
    cause,
  })
}
