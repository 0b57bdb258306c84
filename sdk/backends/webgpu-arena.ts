import { JOB_BYTES } from '../../wgsl/programs.ts'

/** Job words and small uploads of one submit: filled here, copied once before it. */
export class Arena {
  readonly gpu: GPUBuffer
  readonly group: GPUBindGroup
  readonly data: ArrayBuffer
  readonly u32: Uint32Array
  readonly f32: Float32Array
  used = 0

  constructor(device: GPUDevice, layout: GPUBindGroupLayout, bytes: number) {
    this.data = new ArrayBuffer(bytes)
    this.u32 = new Uint32Array(this.data)
    this.f32 = new Float32Array(this.data)
    // UNIFORM | COPY_SRC | COPY_DST; the window of the last job may reach beyond the data.
    this.gpu = device.createBuffer({ label: 'jobs', size: bytes + JOB_BYTES, usage: 0x40 | 0x04 | 0x08 })
    const resource = { buffer: this.gpu, size: JOB_BYTES }
    this.group = device.createBindGroup({ layout, entries: [{ binding: 0, resource }] })
  }

  /** Reserves bytes at a multiple of 256; undefined when full. */
  take(bytes: number): number | undefined {
    const at = this.used
    if (at + bytes > this.data.byteLength) return undefined
    this.used = Math.ceil((at + bytes) / 256) * 256
    return at
  }
}
