import { readFile } from 'node:fs/promises'
import type { Engine, OpenPages } from '../sdk/index.ts'
import { type EngineOptions, openEngine } from './candidates.ts'
import { openDawn, trackDevice } from './dawn.ts'
import { sharedPages } from './shared-pages.ts'

export * from '../sdk/index.ts'
export type { EngineOptions } from './candidates.ts'
export { filePages } from './node-pages.ts'
export { type SharedPagesOptions, sharedPages } from './shared-pages.ts'

/** One for all engines, and so one set of threads. */
let memory: OpenPages | undefined

/**
 * Opens an engine on Node: WebGPU through the optional package `webgpu`, else WebAssembly, else plain TypeScript.
 * Rows that sessions keep off the device are in `sharedPages()` unless `options.pages` says otherwise.
 * @throws ParisError `backend_unavailable` where the device asked for cannot run here
 */
export async function createEngine(options: EngineOptions = {}): Promise<Engine> {
  // Bun comes by here too, and does not promise what the threads build upon.
  if (!process.versions.bun) memory ??= sharedPages()
  return openEngine(
    {
      gpu: async () => (await openDawn()).gpu,
      onDevice: (device) => void trackDevice(device),
      wasm: async () => WebAssembly.compile(await readFile(new URL('../build/kernels.wasm', import.meta.url))),
    },
    { ...options, pages: options?.pages ?? memory },
  )
}
