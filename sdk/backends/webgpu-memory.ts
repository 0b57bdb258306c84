import type { AllocRequest, Buf } from '../backend.ts'
import { ParisError } from '../errors.ts'

/** One GPUBuffer and how many of our buffers live in it. */
interface Slab {
  readonly gpu: GPUBuffer
  readonly size: number
  readonly id: number
  /** Live buffers in it; destroyed at 0. A caller's own buffer is never destroyed here. */
  refs: number
  readonly owned: boolean
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
const align = (bytes: number) => Math.ceil(bytes / ALIGN) * ALIGN
const USAGE = 0x80 | 0x04 | 0x08 // STORAGE | COPY_SRC | COPY_DST: the names are globals only where a runtime sets them

let slabs = 0

/** Allocates, counts and destroys; all or nothing. */
export class GpuMemory {
  private readonly live = new Set<GpuBuf>()
  private used = 0
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
    const total = requests.reduce((sum, { bytes }) => sum + Math.ceil(bytes / 4) * 4, 0)
    if (this.used + total > this.limit)
      throw outOfMemory('webgpu.alloc', total, `at most ${this.limit - this.used} more`)
    this.device.pushErrorScope('out-of-memory')
    this.device.pushErrorScope('validation')
    let created: GpuBuf[] = []
    let thrown: unknown
    try {
      created = this.create(requests)
    } catch (error) {
      thrown = error
    }
    const errors = [await this.device.popErrorScope(), await this.device.popErrorScope()]
    const failure = thrown ?? errors.find((error) => error !== null)
    if (!failure) return created
    this.release(created)
    throw outOfMemory('webgpu.alloc', total, 'what the device has left', failure)
  }

  /** Requests of one `together` name share GPUBuffers, over calls too, as far as one binding reaches; others get their own. */
  private create(requests: readonly AllocRequest[]): GpuBuf[] {
    const wanted = new Map<string, number>()
    for (const { together, bytes } of requests)
      if (together !== undefined) wanted.set(together, (wanted.get(together) ?? 0) + align(Math.max(4, bytes)))
    return requests.map(({ label, bytes, together }) => {
      const size = align(Math.max(4, bytes))
      let room = together === undefined ? undefined : this.open.get(together)
      if (!room || room.slab.refs === 0 || room.at + size > room.slab.size) {
        const whole = together === undefined ? size : this.roomFor(size, wanted.get(together) ?? size)
        room = { slab: this.slab(label, whole), at: 0 }
        if (together !== undefined) this.open.set(together, room)
      }
      const buffer = new GpuBuf(room.slab, room.at, Math.ceil(bytes / 4) * 4)
      room.at += size
      room.slab.refs++
      if (together !== undefined) wanted.set(together, (wanted.get(together) ?? size) - size)
      this.live.add(buffer)
      this.used += buffer.bytes
      return buffer
    })
  }
  private readonly open = new Map<string, { slab: Slab; at: number }>()

  /** As much as is wanted now, room for a few more small ones, never more than one binding reaches. */
  private roomFor(size: number, wanted: number): number {
    const { maxStorageBufferBindingSize, maxBufferSize } = this.device.limits
    const reach = Math.floor(Math.min(maxStorageBufferBindingSize, maxBufferSize) / ALIGN) * ALIGN
    return Math.max(size, Math.min(reach, Math.max(wanted, Math.min(8 * size, 1 << 24))))
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
    return { gpu: this.device.createBuffer({ label, size, usage: USAGE }), size, id: ++slabs, refs: 0, owned: true }
  }

  /** True when a GPUBuffer was destroyed. */
  release(buffers: readonly GpuBuf[]): boolean {
    let destroyed = false
    for (const buffer of buffers) {
      if (!this.live.delete(buffer)) continue
      this.used -= buffer.bytes
      if (--buffer.slab.refs > 0 || !buffer.slab.owned) continue
      buffer.slab.gpu.destroy()
      destroyed = true
    }
    return destroyed
  }

  allocated(): number {
    return this.used
  }

  dispose(): void {
    this.release([...this.live])
  }
}

function outOfMemory(where: string, bytes: number, want: string, cause?: unknown): ParisError {
  return new ParisError('out_of_memory', {
    where,
    got: `${bytes} bytes`,
    want,
    fix: 'Lower capacity, layers or heads, or take a 16-bit store.',
    cause,
  })
}

/** Private working memory of the kernels, cut from a few GPUBuffers so that a batch's jobs share one; never freed singly. */
export class Scratch {
  private readonly device: GPUDevice
  private readonly step: number
  private readonly free = new Map<number, GpuBuf[]>()
  private readonly all: GPUBuffer[] = []
  private current: { slab: Slab; at: number } | undefined

  constructor(device: GPUDevice, step = 1 << 22) {
    this.device = device
    this.step = step
  }

  /** `dirty` where the memory was used before. */
  take(bytes: number): { buf: GpuBuf; dirty: boolean } {
    const size = align(bytes)
    const old = this.free.get(size)?.pop()
    if (old) return { buf: old, dirty: true }
    if (!this.current || this.current.at + size > this.current.slab.size) {
      const gpu = this.device.createBuffer({ label: 'scratch', size: Math.max(size, this.step), usage: USAGE })
      this.all.push(gpu)
      this.current = { slab: { gpu, size: gpu.size, id: ++slabs, refs: 1, owned: false }, at: 0 }
    }
    const buf = new GpuBuf(this.current.slab, this.current.at, size)
    this.current.at += size
    return { buf, dirty: false }
  }

  give(buf: GpuBuf): void {
    const list = this.free.get(buf.bytes)
    if (list) list.push(buf)
    else this.free.set(buf.bytes, [buf])
  }

  dispose(): void {
    for (const gpu of this.all) gpu.destroy()
  }
}
