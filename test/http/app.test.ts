import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { Engine } from '../../sdk/engine.ts'
import { createApp } from '../../sdk/http/app.ts'
import { compileKernels } from '../support/kernels-wasm.ts'
import { httpSuite } from './suite.ts'
import { TOKENS } from './support.ts'

httpSuite('app.request', async () => {
  const kernels = compileKernels()
  const app = createApp({ engine: async () => new Engine(createWasmBackend(kernels)), auth: { tokens: TOKENS } })
  await app.ready()
  return { fetch: async (path, init) => app.request(path, init), close: () => app.dispose() }
})
