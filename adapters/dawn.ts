import { existsSync } from 'node:fs'
import { BackendUnavailable } from '../sdk/index.ts'

interface Dawn {
  readonly gpu: GPU
  readonly devices: Set<GPUDevice>
}

/**
 * Dawn under Node and Bun, from the optional package `webgpu`. Its instance must live as long as the process, and no
 * device may be alive when the process ends, so both are kept on a global symbol.
 * @throws BackendUnavailable where the package is not installed or does not load here
 */
export async function openDawn(): Promise<Dawn> {
  const pinned = globalThis as { [key: symbol]: Dawn | undefined }
  const key = Symbol.for('pariskv.dawn')
  const known = pinned[key]
  if (known) return known
  if (!mayHaveGpu()) throw new BackendUnavailable('webgpu', 'no GPU on this machine', 'Use a machine with a GPU.')
  let create: (flags: string[]) => GPU
  try {
    create = ((await import('webgpu')) as { create: typeof create }).create
  } catch (cause) {
    throw new BackendUnavailable('webgpu', 'the package webgpu is not installed', 'Run npm install webgpu.', cause)
  }
  const raced = pinned[key]
  if (raced) return raced
  // NVIDIA's driver offers f16 only behind this toggle; none that drops validation or robustness is ever set.
  const dawn: Dawn = { gpu: create(['enable-dawn-features=vulkan_enable_f16_on_nvidia']), devices: new Set() }
  pinned[key] = dawn
  process.once('exit', () => {
    for (const device of dawn.devices) device.destroy()
  })
  return dawn
}

/** Whether it is worth loading Dawn, which complains on stderr where there is no Vulkan. */
function mayHaveGpu(): boolean {
  if (process.platform !== 'linux') return true
  const told = process.env.VK_DRIVER_FILES ?? process.env.VK_ICD_FILENAMES
  return told !== undefined || ['/dev/nvidia0', '/dev/dri', '/dev/dxg'].some((path) => existsSync(path))
}

/** Keeps a device until it is lost or destroyed, so that it can be destroyed before the process ends. */
export async function trackDevice(device: GPUDevice): Promise<void> {
  const { devices } = await openDawn()
  devices.add(device)
  void device.lost.then(() => devices.delete(device))
}
