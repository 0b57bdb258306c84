import type { LaterRead, ReadPart } from '../backend.ts'
import type { DeviceState } from './webgpu-device.ts'
import type { GpuBuf } from './webgpu-memory.ts'

const POOLED = 1 << 20

/** Mappable buffers for `read`; small ones are kept. */
export class Readback {
  private readonly device: GPUDevice
  private readonly idle = new Map<number, GPUBuffer[]>()
  private readonly all = new Set<GPUBuffer>()

  constructor(device: GPUDevice) {
    this.device = device
  }

  take(bytes: number): GPUBuffer {
    const size = bytes <= POOLED ? 2 ** Math.max(8, Math.ceil(Math.log2(Math.max(1, bytes)))) : Math.ceil(bytes / 4) * 4
    const old = this.idle.get(size)?.pop()
    if (old) return old
    const fresh = this.device.createBuffer({ label: 'readback', size, usage: 0x01 | 0x08 }) // MAP_READ | COPY_DST
    this.all.add(fresh)
    return fresh
  }

  /** The bytes, once they are there and all that led to them was accepted; the typed error if the device goes first. */
  async map(buffer: GPUBuffer, bytes: number, state: DeviceState): Promise<Uint8Array> {
    try {
      if (bytes > 0) await state.guard(buffer.mapAsync(1, 0, bytes)) // READ
      await state.submitted()
      const copy = bytes > 0 ? new Uint8Array(buffer.getMappedRange(0, bytes)).slice() : new Uint8Array(0)
      if (copy.length !== bytes) throw new Error('A mapped range was detached.')
      if (bytes > 0) buffer.unmap()
      this.give(buffer)
      return copy
    } catch (cause) {
      this.drop(buffer)
      await state.settle()
      throw cause
    }
  }

  /** Ranges behind one another in one buffer. @param copy records the copy of one */
  later(
    parts: readonly ReadPart[],
    state: DeviceState,
    copy: (from: GpuBuf, offset: number, to: GPUBuffer, at: number, bytes: number) => void,
  ): LaterRead {
    const total = parts.reduce((sum, { bytes }) => sum + bytes, 0)
    const staging = this.take(total)
    let at = 0
    for (const { buf, offset, bytes } of parts) {
      copy(buf as GpuBuf, offset, staging, at, bytes)
      at += bytes
    }
    return {
      read: async () => {
        const all = await this.map(staging, total, state)
        let from = 0
        return parts.map(({ bytes }) => {
          from += bytes
          return all.subarray(from - bytes, from)
        })
      },
      drop: () => this.give(staging),
    }
  }

  /** Takes a buffer that is not mapped back. */
  private give(buffer: GPUBuffer): void {
    if (buffer.size > POOLED) this.drop(buffer)
    else this.idle.set(buffer.size, [...(this.idle.get(buffer.size) ?? []), buffer])
  }

  private drop(buffer: GPUBuffer): void {
    this.all.delete(buffer)
    buffer.destroy()
  }

  dispose(): void {
    for (const buffer of this.all) buffer.destroy()
    this.all.clear()
    this.idle.clear()
  }
}
