import type { Backend } from '../backend.ts'

/** Mappable buffers through which logits come back; kept for the next step. */
export class Logits {
  private readonly idle: GPUBuffer[] = []
  private readonly all = new Set<GPUBuffer>()

  constructor(
    private readonly backend: Backend,
    private readonly device: GPUDevice,
  ) {}

  take(bytes: number): GPUBuffer {
    const at = this.idle.findIndex(({ size }) => size === bytes)
    if (at >= 0) return this.idle.splice(at, 1)[0]
    const fresh = this.device.createBuffer({ label: 'logits', size: bytes, usage: 0x01 | 0x08 }) // MAP_READ | COPY_DST
    this.all.add(fresh)
    return fresh
  }

  give(buffer: GPUBuffer): void {
    this.idle.push(buffer)
  }

  /** What the last submit copied there. @throws ParisError `device_lost` */
  async read(buffer: GPUBuffer, bytes: number): Promise<Float32Array> {
    try {
      await buffer.mapAsync(1, 0, bytes)
      const copy = new Float32Array(buffer.getMappedRange(0, bytes).slice(0))
      buffer.unmap()
      this.give(buffer)
      this.backend.check?.()
      return copy
    } catch (error) {
      this.all.delete(buffer)
      buffer.destroy()
      // A loss is told a little after what it breaks.
      await new Promise((resolve) => setTimeout(resolve, 50))
      this.backend.check?.()
      throw error
    }
  }

  dispose(): void {
    for (const buffer of this.all) buffer.destroy()
    this.all.clear()
    this.idle.length = 0
  }
}
