import { create } from 'webgpu'
import { createWebgpuBackend, type WebgpuBackend } from '../../sdk/backends/webgpu.ts'

/** Opens the machine's GPU with exact timestamps and its largest limits; the instance is pinned for the process's life. */
export async function openGpu(): Promise<WebgpuBackend> {
  const gpu = create([
    'disable-dawn-features=timestamp_quantization',
    'enable-dawn-features=vulkan_enable_f16_on_nvidia',
  ])
  Object.assign(globalThis, { [Symbol.for('pariskv.dawn')]: gpu })
  const adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' })
  if (!adapter) throw new Error('no adapter')
  const { limits } = adapter
  const device = await adapter.requestDevice({
    requiredFeatures: ['timestamp-query', ...(adapter.features.has('subgroups') ? (['subgroups'] as const) : [])],
    requiredLimits: {
      maxBufferSize: limits.maxBufferSize,
      maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
      maxComputeWorkgroupStorageSize: limits.maxComputeWorkgroupStorageSize,
      maxComputeInvocationsPerWorkgroup: limits.maxComputeInvocationsPerWorkgroup,
      maxComputeWorkgroupSizeX: limits.maxComputeWorkgroupSizeX,
    },
  })
  process.once('exit', () => device.destroy())
  return createWebgpuBackend(device, { onDispose: () => device.destroy() })
}
