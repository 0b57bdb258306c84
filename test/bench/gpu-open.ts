import { create } from 'webgpu'
import { deviceDescriptor } from '../../adapters/candidates.ts'
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
  const device = await adapter.requestDevice(deviceDescriptor(adapter))
  process.once('exit', () => device.destroy())
  return createWebgpuBackend(device, { onDispose: () => device.destroy() })
}
