import { navigatorGpu } from '../../adapters/web.ts'
import type { GpuSource } from '../support/gpu-source.ts'

const devices = new Set<GPUDevice>()

/** The browser's own; devices end with the page. */
export async function gpuSource(): Promise<GpuSource> {
  return { gpu: await navigatorGpu(), devices }
}
