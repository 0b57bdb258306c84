import type { Backend, GpuRecorder } from '../backend.ts'
import { ParisError } from '../errors.ts'
import { attend, dense, merge, partsOf } from './webgpu-attend.ts'
import { coarseCollision, coarseSigns, select, topk } from './webgpu-choose.ts'
import { encode, query, rerank, rotate, store } from './webgpu-codes.ts'
import { GpuContext } from './webgpu-context.ts'
import { type GpuBuf, GpuMemory } from './webgpu-memory.ts'
import { Pipelines } from './webgpu-pipelines.ts'
import { Readback } from './webgpu-readback.ts'
import { Recorder } from './webgpu-recorder.ts'

export interface WebgpuOptions {
  /** Bytes that `alloc` gives at most; no limit of its own by default. */
  readonly memoryLimit?: number
  /** Widest binding and most workgroups a dimension to use; the device's own by default. Lower ones are for tests. */
  readonly maxBinding?: number
  readonly maxWorkgroups?: number
  /** Workgroups that fill the device. */
  readonly slots?: number
  /** Called at the end of `dispose`, to destroy a device that was opened for this backend. */
  readonly onDispose?: () => void
}

/** The backend, and what only a GPU can offer. */
export interface WebgpuBackend extends Backend, GpuRecorder {
  readonly name: 'webgpu'
  warm(verbs: () => void): Promise<void>
  wrap(buffer: GPUBuffer, offset?: number, bytes?: number): GpuBuf
  /** Submits what was recorded so far; `read` does so by itself. */
  flush(): void
}

/** The backend on any GPUDevice; no runtime is named here. Works at WebGPU's default limits and uses larger ones. */
export async function createWebgpuBackend(device: GPUDevice, options: WebgpuOptions = {}): Promise<WebgpuBackend> {
  const fallback = device.adapterInfo?.isFallbackAdapter ?? false
  const state = watch(device)
  const pipelines = new Pipelines(device)
  const recorder = new Recorder(
    device,
    pipelines,
    options.maxBinding ?? Number.POSITIVE_INFINITY,
    options.maxWorkgroups ?? 65_535,
  )
  const memory = new GpuMemory(device, options.memoryLimit ?? Number.POSITIVE_INFINITY)
  const gpu = new GpuContext(device, recorder, options.slots ?? (fallback ? 16 : 1024))
  const readback = new Readback(device)
  const verb =
    <J>(kernel: (gpu: GpuContext, jobs: readonly J[]) => void) =>
    (jobs: readonly J[]) => {
      state.check()
      kernel(gpu, jobs)
    }
  const own = (buf: unknown) => buf as GpuBuf
  const recording = {
    device,
    recordInto(encoder: GPUCommandEncoder, body: () => void) {
      state.check()
      return recorder.recordInto(encoder, body)
    },
    wrap: (buffer: GPUBuffer, offset?: number, bytes?: number) => memory.wrap(buffer, offset, bytes),
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
    async alloc(requests) {
      state.check()
      try {
        return await memory.alloc(requests)
      } catch (error) {
        await state.settle()
        throw error
      }
    },
    free(buffers) {
      recorder.flush()
      for (const buffer of buffers) gpu.forget(own(buffer))
      if (!memory.release(buffers.map(own))) return
      recorder.forget()
      // A destroyed buffer's memory goes back at the next submit.
      if (!state.lost()) device.queue.submit([])
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
      state.check()
      const staging = readback.take(bytes)
      recorder.copy(own(buf).gpu, own(buf).offset + offset, staging, 0, bytes)
      recorder.flush()
      return readback.map(staging, bytes, state)
    },
    parts: (positions, heads) => partsOf(gpu, positions, heads),
    allocated: () => memory.allocated(),
    async warm(verbs) {
      try {
        await pipelines.warm(verbs)
      } catch (error) {
        await state.settle(error)
        throw error
      }
    },
    flush() {
      state.check()
      recorder.flush()
    },
    dispose() {
      memory.dispose()
      recorder.dispose()
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

/** What has gone wrong with a device so far. */
export interface DeviceState {
  lost(): boolean
  /** Throws `device_lost`, or the first error that no scope caught. */
  check(cause?: unknown): void
  /** Waits until a loss that is under way has been told, then checks. */
  settle(cause?: unknown): Promise<void>
  readonly loss: Promise<GPUDeviceLostInfo>
  /** Stops listening to the device, which may outlive the backend. */
  leave(): void
}

function watch(device: GPUDevice): DeviceState {
  let loss: ParisError | undefined
  let failure: GPUError | undefined
  const told = device.lost.then((info) => {
    loss = new ParisError('device_lost', {
      where: 'webgpu',
      got: `a lost device (${info.reason || 'unknown'}: ${info.message})`,
      want: 'a live device',
      fix: 'Dispose the engine and create it again; what was on the device is gone.',
    })
    return info
  })
  const onError = (event: GPUUncapturedErrorEvent) => {
    failure ??= event.error
    if (failure.constructor.name === 'GPUOutOfMemoryError')
      loss ??= new ParisError('out_of_memory', {
        where: 'webgpu',
        got: `working memory that the device did not have (${failure.message})`,
        want: 'a few MiB beside the buffers',
        fix: 'Dispose the engine and open it with less capacity.',
      })
  }
  device.addEventListener?.('uncapturederror', onError)
  const check = (cause?: unknown) => {
    if (loss) throw loss
    if (failure) throw new Error(`WebGPU refused a command: ${failure.message}`, { cause })
  }
  return {
    lost: () => loss !== undefined,
    check,
    async settle(cause) {
      await Promise.race([told, new Promise((resolve) => setTimeout(resolve, 50))])
      check(cause)
    },
    loss: told,
    leave: () => device.removeEventListener?.('uncapturederror', onError),
  }
}
