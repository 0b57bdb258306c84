import { align, GpuBuf, type GpuMemory, newSlab, type Slab } from './webgpu-memory.ts'

const STEP = 1 << 22

/** Private working memory of the kernels, cut from a few GPUBuffers so that a batch's jobs share one. */
export class Scratch {
  private readonly device: GPUDevice
  private readonly memory: GpuMemory
  /** Given back and not yet taken again, by size. */
  private readonly free = new Map<number, GpuBuf[]>()
  private readonly all = new Set<Slab>()
  private current: { slab: Slab; at: number } | undefined

  constructor(device: GPUDevice, memory: GpuMemory) {
    this.device = device
    this.memory = memory
  }

  /** `dirty` where the memory was used before. */
  take(bytes: number): { buf: GpuBuf; dirty: boolean } {
    const size = align(bytes)
    const old = this.free.get(size)?.pop()
    if (old) {
      old.slab.refs++
      return { buf: old, dirty: true }
    }
    let room = this.current
    if (!room || room.at + size > room.slab.size) {
      // A batch runs as one dispatch only where its working memory lies in one slab: some of what is held is worth that.
      const step = align(Math.min(STEP, Math.max(this.memory.spare(size) / 4, this.memory.allocated() / 128)))
      const slab = newSlab(this.device, 'scratch', Math.max(size, step))
      this.memory.hold(slab.size)
      this.all.add(slab)
      room = { slab, at: 0 }
      this.current = room
    }
    const buf = new GpuBuf(room.slab, room.at, size)
    room.at += size
    room.slab.refs++
    return { buf, dirty: false }
  }

  /** True when a GPUBuffer was destroyed, of which nothing was in use any more. */
  give(buf: GpuBuf): boolean {
    const { slab, bytes } = buf
    if (--slab.refs > 0) {
      const list = this.free.get(bytes)
      if (list) list.push(buf)
      else this.free.set(bytes, [buf])
      return false
    }
    for (const [size, list] of this.free)
      this.free.set(
        size,
        list.filter((other) => other.slab !== slab),
      )
    if (this.current?.slab === slab) this.current = undefined
    this.destroy(slab)
    return true
  }

  private destroy(slab: Slab): void {
    slab.gpu.destroy()
    this.all.delete(slab)
    this.memory.hold(-slab.size)
  }

  dispose(): void {
    for (const slab of this.all) this.destroy(slab)
  }
}
