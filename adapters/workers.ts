import kernels from '../build/kernels.wasm'
import type { Engine } from '../sdk/index.ts'
import { type EngineOptions, openEngine } from './candidates.ts'

export * from '../sdk/index.ts'
export type { EngineOptions } from './candidates.ts'

/** Opens an engine on an edge worker: WebAssembly from the imported module. @throws ParisError `backend_unavailable` */
export async function createEngine(options: EngineOptions = {}): Promise<Engine> {
  return openEngine({ wasm: async () => kernels }, options)
}
