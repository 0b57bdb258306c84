import { existsSync } from 'node:fs'
import { create } from 'webgpu'
import { useSwiftShader } from './swiftshader.ts'

/** Where devices come from, and those that are open. */
export interface GpuSource {
  readonly gpu: GPU
  readonly devices: Set<GPUDevice>
}

/** Dawn's. The instance must live as long as the process, and devices must be gone before it ends. */
export function gpuSource(): GpuSource {
  const pinned = globalThis as { [key: symbol]: GpuSource | undefined }
  const key = Symbol.for('pariskv.dawn')
  const known = pinned[key]
  if (known) return known
  const real = ['/dev/nvidia0', '/dev/dri', '/dev/dxg'].some((path) => existsSync(path))
  const told = process.env.VK_DRIVER_FILES ?? process.env.VK_ICD_FILENAMES
  // A parent process that uses the software GPU hands its variable down, but not the loaded library.
  if (!real && (!told || told.includes('pariskv-swiftshader'))) useSwiftShader()
  const made: GpuSource = { gpu: create(['enable-dawn-features=vulkan_enable_f16_on_nvidia']), devices: new Set() }
  pinned[key] = made
  process.once('exit', () => {
    for (const device of made.devices) device.destroy()
  })
  return made
}
