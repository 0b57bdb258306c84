import { requireSimd } from '../sdk/backends/wasm.ts'
import {
  BackendUnavailable,
  type Candidate,
  chooseBackend,
  createReferenceBackend,
  createWasmBackend,
  createWebgpuBackend,
  type Device,
  Engine,
  type OpenPages,
  ParisError,
} from '../sdk/index.ts'

/** Options of `createEngine`. */
export interface EngineOptions {
  /** `auto` (default) takes the fastest backend that runs here; see `engine.info` for what won and why. */
  readonly device?: Device
  /** A GPUDevice of yours to run on; it stays yours. Without it a device of its own is opened, and destroyed with the engine. */
  readonly gpu?: GPUDevice
  /** kernels.wasm, compiled by you. Without it the adapter loads the one that comes with the package. */
  readonly wasm?: WebAssembly.Module
  /** Opens what holds the rows that sessions keep off the device; host memory by default. See `policy.offload`. */
  readonly pages?: OpenPages
}

/** How one runtime gets at its GPU and at kernels.wasm. */
export interface Runtime {
  /** Undefined where the runtime has no WebGPU at all. @throws BackendUnavailable with the reason */
  readonly gpu?: () => Promise<GPU>
  /** Called once for each device that is opened. */
  readonly onDevice?: (device: GPUDevice) => void
  readonly wasm: () => Promise<WebAssembly.Module>
}

/** Opens an engine: webgpu, then wasm, then the reference, the first that can run here. */
export async function openEngine(runtime: Runtime, options: EngineOptions): Promise<Engine> {
  const { device = 'auto', gpu, wasm } = options ?? {}
  const candidates: Candidate[] = [
    { name: 'webgpu', open: () => openWebgpu(runtime, gpu, device === 'auto') },
    { name: 'wasm', open: async () => createWasmBackend(wasm ?? (await loadWasm(runtime))) },
    { name: 'reference', open: async () => createReferenceBackend() },
  ]
  const { backend, passedOver } = await chooseBackend(device, candidates)
  return new Engine(backend, passedOver, options?.pages)
}

async function loadWasm(runtime: Runtime): Promise<WebAssembly.Module> {
  requireSimd()
  try {
    return await runtime.wasm()
  } catch (cause) {
    const fix = 'Serve dist/build/kernels.wasm beside your bundle, or hand in the compiled module as options.wasm.'
    throw new BackendUnavailable('wasm', `kernels.wasm could not be loaded: ${reasonOf(cause)}`, fix, cause)
  }
}

/** @param auto passes over a software GPU, which is slower than Wasm; asking for webgpu by name takes it */
async function openWebgpu(runtime: Runtime, given: GPUDevice | undefined, auto: boolean) {
  if (given !== undefined && given !== null) {
    const { createBuffer, lost } = given as { createBuffer?: unknown; lost?: { then?: unknown } }
    if (typeof createBuffer === 'function' && typeof lost?.then === 'function') return createWebgpuBackend(given)
    const got = Object.prototype.toString.call(given).slice(8, -1)
    const fix = 'Hand in what adapter.requestDevice() gave, or leave gpu out.'
    throw new ParisError('bad_config', { where: 'createEngine: gpu', got, want: 'a GPUDevice', fix })
  }
  const fix = "Use a machine with a GPU and its driver, or device: 'wasm'."
  if (!runtime.gpu) throw new BackendUnavailable('webgpu', 'this runtime has no WebGPU', fix)
  const adapter = await (await runtime.gpu()).requestAdapter({ powerPreference: 'high-performance' })
  if (!adapter) throw new BackendUnavailable('webgpu', 'no GPU adapter', fix)
  if (auto && adapter.info.isFallbackAdapter) throw new BackendUnavailable('webgpu', 'only a software GPU', fix)
  let device: GPUDevice
  try {
    device = await adapter.requestDevice(deviceDescriptor(adapter))
  } catch (cause) {
    throw new BackendUnavailable('webgpu', `no device: ${reasonOf(cause)}`, fix, cause)
  }
  runtime.onDevice?.(device)
  return createWebgpuBackend(device, { onDispose: () => device.destroy() })
}

const FEATURES = ['subgroups', 'shader-f16', 'timestamp-query'] as GPUFeatureName[]

/** Asks for the adapter's own limits, for subgroups, and for features that a caller may use beside the kernels. */
export function deviceDescriptor(adapter: GPUAdapter) {
  const { limits } = adapter
  return {
    requiredFeatures: FEATURES.filter((feature) => adapter.features.has(feature)),
    requiredLimits: {
      maxBufferSize: limits.maxBufferSize,
      maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
      maxComputeWorkgroupStorageSize: limits.maxComputeWorkgroupStorageSize,
      maxComputeInvocationsPerWorkgroup: limits.maxComputeInvocationsPerWorkgroup,
      maxComputeWorkgroupSizeX: limits.maxComputeWorkgroupSizeX,
    },
  }
}

function reasonOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause)
}
