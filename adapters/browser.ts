import type { Engine } from '../sdk/index.ts'
import { type EngineOptions, openEngine } from './candidates.ts'
import { compileFrom, navigatorGpu } from './web.ts'

export * from '../sdk/index.ts'
export type { EngineOptions } from './candidates.ts'

/** Opens an engine in a browser or Deno, on navigator.gpu where there is one. @throws ParisError `backend_unavailable` */
export async function createEngine(options: EngineOptions = {}): Promise<Engine> {
  const wasm = () => compileFrom(new URL('../build/kernels.wasm', import.meta.url))
  return openEngine({ gpu: navigatorGpu, wasm }, options)
}
