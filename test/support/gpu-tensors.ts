import { queriesAt, rows, type Sequence } from './sessions.ts'

/** A GPUBuffer that holds these numbers, for kernels to read and commands to copy from. */
export function bufferOf(gpu: GPUDevice, data: Float32Array, usage = 0x80 | 0x04 | 0x08): GPUBuffer {
  const made = gpu.createBuffer({ size: data.byteLength, usage })
  gpu.queue.writeBuffer(made, 0, data as Float32Array<ArrayBuffer>)
  return made
}

/** A GPUBuffer for kernels to write. */
export function roomOf(gpu: GPUDevice, bytes: number): GPUBuffer {
  return gpu.createBuffer({ size: bytes, usage: 0x80 | 0x04 })
}

/** What a GPUBuffer holds. */
export async function contentsOf(gpu: GPUDevice, from: GPUBuffer): Promise<Float32Array> {
  const staging = gpu.createBuffer({ size: from.size, usage: 0x01 | 0x08 })
  const encoder = gpu.createCommandEncoder()
  encoder.copyBufferToBuffer(from, 0, staging, 0, from.size)
  gpu.queue.submit([encoder.finish()])
  await staging.mapAsync(1)
  const copy = new Float32Array(staging.getMappedRange().slice(0))
  staging.destroy()
  return copy
}

/** Token t as an append takes it from GPUBuffers. */
export function tokenOf(gpu: GPUDevice, seq: Sequence, t: number) {
  const { keys, values } = rows(seq, t, t + 1)
  return { keys: bufferOf(gpu, keys), values: bufferOf(gpu, values), tokens: 1 }
}

/** Token t's part of a step. */
export function stepOf(gpu: GPUDevice, seq: Sequence, t: number) {
  return { queries: bufferOf(gpu, queriesAt(seq, t)), append: tokenOf(gpu, seq, t) }
}
