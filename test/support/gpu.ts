import { deviceDescriptor } from '../../adapters/candidates.ts'
import { createWebgpuBackend, type WebgpuBackend, type WebgpuOptions } from '../../sdk/backends/webgpu.ts'
import { BackendUnavailable } from '../../sdk/errors.ts'
import { gpuSource } from './gpu-source.ts'

export interface DeviceChoice {
  /** WebGPU's default limits instead of the adapter's. */
  readonly defaultLimits?: boolean
  /** No optional feature at all: no subgroups, no f16. */
  readonly bare?: boolean
}

/** A real GPU where the machine has one, the software GPU elsewhere. */
export async function openDevice(choice: DeviceChoice = {}): Promise<GPUDevice> {
  const { gpu, devices } = await gpuSource()
  const adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' })
  if (!adapter) throw new BackendUnavailable('webgpu', 'no adapter', 'Run npm ci, which brings a software GPU.')
  const { requiredFeatures, requiredLimits } = deviceDescriptor(adapter)
  const device = await adapter.requestDevice({
    requiredFeatures: choice.bare ? [] : requiredFeatures,
    requiredLimits: choice.defaultLimits ? {} : requiredLimits,
  })
  devices.add(device)
  void device.lost.then(() => devices.delete(device))
  return device
}

let shared: Promise<GPUDevice> | undefined

/** The one device of this process. While a pipeline lives, the device gives it again instead of compiling it again. */
export function sharedDevice(): Promise<GPUDevice> {
  shared ??= openDevice().then((device) => {
    const alive: GPUComputePipeline[] = []
    const create = device.createComputePipeline.bind(device)
    device.createComputePipeline = (descriptor) => {
      const pipeline = create(descriptor)
      alive.push(pipeline)
      return pipeline
    }
    return device
  })
  return shared
}

/** A backend with memory of its own on the device of this process. */
export async function shareWebgpu(options: WebgpuOptions = {}): Promise<WebgpuBackend> {
  return createWebgpuBackend(await sharedDevice(), options)
}

/** A backend with a device of its own, destroyed with it. */
export async function openWebgpu(choice: DeviceChoice = {}, options: WebgpuOptions = {}): Promise<WebgpuBackend> {
  const device = await openDevice(choice)
  return createWebgpuBackend(device, { ...options, onDispose: () => device.destroy() })
}
