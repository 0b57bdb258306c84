import { readFile } from 'node:fs/promises'
import type { Engine } from '../sdk/index.ts'
import { type EngineOptions, openEngine } from './candidates.ts'
import { openDawn, trackDevice } from './dawn.ts'

export * from '../sdk/index.ts'
export type { EngineOptions } from './candidates.ts'
export { filePages } from './node-pages.ts'

/**
 * Opens an engine on Node: WebGPU through the optional package `webgpu`, else WebAssembly, else plain TypeScript.
 * @throws ParisError `backend_unavailable` where the device asked for cannot run here
 */
export async function createEngine(options: EngineOptions = {}): Promise<Engine> {
  return openEngine(
    {
      gpu: async () => (await openDawn()).gpu,
      onDevice: (device) => void trackDevice(device),
      wasm: async () => WebAssembly.compile(await readFile(new URL('../build/kernels.wasm', import.meta.url))),
    },
    options,
  )
}
