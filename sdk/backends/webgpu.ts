import type { Backend, GpuRecorder, ReadPart } from '../backend.ts'
import { attend, dense, merge, partsOf } from './webgpu-attend.ts'
import { coarseCollision, coarseSigns, select, topk } from './webgpu-choose.ts'
import { encode, query, rerank, rotate, store } from './webgpu-codes.ts'
import { GpuContext } from './webgpu-context.ts'
import { DeviceState } from './webgpu-device.ts'
import { type GpuBuf, GpuMemory } from './webgpu-memory.ts'
import { gate, linear, lookup, norm, rope } from './webgpu-model.ts'
import { Pipelines } from './webgpu-pipelines.ts'
import { Readback } from './webgpu-readback.ts'
import { Recorder } from './webgpu-recorder.ts'
import { subgroupLanes } from './webgpu-subgroups.ts'
import { Uploads } from './webgpu-uploads.ts'

export interface WebgpuOptions {
  /** Bytes that `alloc` gives at most, the mapped memory of large writes included; no limit of its own by default. */
  readonly memoryLimit?: number
  /** Widest binding and most workgroups a dimension to use; the device's own by default. Lower ones are for tests. */
  readonly maxBinding?: number
  readonly maxWorkgroups?: number
  /** Workgroups that fill the device. */
  readonly slots?: number
  /** False: no subgroup operations, although the device has them. */
  readonly subgroups?: boolean
  /** Called at the end of `dispose`, to destroy a device that was opened for this backend. */
  readonly onDispose?: () => void
}

/** The backend, and what only a GPU can offer. */
export interface WebgpuBackend extends Backend, GpuRecorder {
  readonly name: 'webgpu'
  warm(verbs: () => void): Promise<void>
  wrap(buffer: GPUBuffer, offset?: number, bytes?: number): GpuBuf
}

/** The backend on any GPUDevice; no runtime is named here. Works at WebGPU's default limits and uses larger ones. */
export async function createWebgpuBackend(device: GPUDevice, options: WebgpuOptions = {}): Promise<WebgpuBackend> {
  const fallback = device.adapterInfo?.isFallbackAdapter ?? false
  const state = new DeviceState(device)
  const pipelines = new Pipelines(device)
  const memory = new GpuMemory(device, options.memoryLimit ?? Number.POSITIVE_INFINITY)
  const uploads = new Uploads(device, memory)
  const recorder = new Recorder(device, pipelines, state, uploads, {
    bytes: Math.min(options.maxBinding ?? Number.POSITIVE_INFINITY, device.limits.maxStorageBufferBindingSize),
    groups: Math.min(options.maxWorkgroups ?? 65_535, device.limits.maxComputeWorkgroupsPerDimension),
  })
  const lanes = options.subgroups === false ? 0 : await subgroupLanes(device, state)
  const gpu = new GpuContext(device, recorder, memory, options.slots ?? (fallback ? 16 : 1024), lanes)
  const readback = new Readback(device)
  const verb =
    <J>(kernel: (gpu: GpuContext, jobs: readonly J[]) => void) =>
    (jobs: readonly J[]) => {
      state.check()
      kernel(gpu, jobs)
    }
  const own = (buf: unknown) => buf as GpuBuf
  const readLater = (parts: readonly ReadPart[]) => {
    state.check()
    return readback.later(parts, state, (buf, offset, to, at, bytes) =>
      recorder.copy(buf.gpu, buf.offset + offset, to, at, bytes),
    )
  }
  const readAll = async (parts: readonly ReadPart[]) => {
    const later = readLater(parts)
    recorder.flush()
    return later.read()
  }
  const recording = {
    device,
    // Windows begin at a multiple of 256 and end at one of 16.
    reach: recorder.reach.bytes - 512,
    recordInto(encoder: GPUCommandEncoder, body: () => void) {
      state.check()
      return recorder.recordInto(encoder, body)
    },
    readLater,
    flush() {
      state.check()
      recorder.flush()
    },
    wrap: (buffer: GPUBuffer, offset?: number, bytes?: number) => memory.wrap(buffer, offset, bytes),
    range: (buf: unknown) => ({ buffer: own(buf).gpu, offset: own(buf).offset }),
  }
  return {
    ...recording,
    recorder: recording,
    name: 'webgpu',
    description: describe(device, fallback),
    layout: { block: 1, align: 4 },
    rotate: verb(rotate),
    encode: verb(encode),
    query: verb(query),
    coarseSigns: verb(coarseSigns),
    coarseCollision: verb(coarseCollision),
    select: verb(select),
    rerank: verb(rerank),
    topk: verb(topk),
    attend: verb(attend),
    merge: verb(merge),
    dense: verb(dense),
    store: verb(store),
    lookup: verb(lookup),
    norm: verb(norm),
    rope: verb(rope),
    linear: verb(linear),
    gate: verb(gate),
    async alloc(requests) {
      state.check()
      let buffers: GpuBuf[] = []
      if (memory.crowded(requests)) {
        recorder.flush()
        uploads.trim()
      }
      try {
        buffers = await memory.alloc(requests)
        state.check()
        return buffers
      } catch (error) {
        memory.release(buffers)
        await state.settle()
        throw error
      }
    },
    free(buffers) {
      recorder.flush()
      let destroyed = false
      for (const buffer of buffers) destroyed = gpu.forget(own(buffer)) || destroyed
      if (!memory.release(buffers.map(own)) && !destroyed) return
      recorder.forget()
      if (memory.allocated() === 0) uploads.trim()
      // A destroyed buffer's memory goes back at the next submit.
      device.queue.submit([])
    },
    write(buf, offset, data) {
      state.check()
      gpu.touched(own(buf))
      recorder.write(own(buf), offset, data)
    },
    copy(src, srcOffset, dst, dstOffset, bytes) {
      state.check()
      gpu.touched(own(dst))
      recorder.copy(own(src).gpu, own(src).offset + srcOffset, own(dst).gpu, own(dst).offset + dstOffset, bytes)
    },
    clear(buf) {
      state.check()
      gpu.touched(own(buf))
      recorder.clear(own(buf))
    },
    async read(buf, offset, bytes) {
      const [copy] = await readAll([{ buf, offset, bytes }])
      return copy
    },
    readAll,
    parts: (positions, heads) => partsOf(gpu, positions, heads),
    allocated: () => memory.allocated(),
    limits: () => ({ total: options.memoryLimit ?? Number.POSITIVE_INFINITY, buffer: device.limits.maxBufferSize }),
    check: () => state.check(),
    async warm(verbs) {
      state.check()
      try {
        await state.guard(pipelines.warm(verbs))
      } catch (error) {
        await state.settle()
        throw error
      }
      state.check()
    },
    dispose() {
      memory.dispose()
      recorder.dispose()
      uploads.dispose()
      gpu.dispose()
      readback.dispose()
      state.leave()
      options.onDispose?.()
    },
  }
}

function describe(device: GPUDevice, fallback: boolean): string {
  const info = device.adapterInfo
  const name = info ? [info.vendor, info.architecture, info.description || info.device].filter(Boolean).join(' ') : ''
  return `${name || 'a WebGPU device'}${fallback ? ', software' : ''}`
}
