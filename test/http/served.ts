import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { Engine } from '../../sdk/engine.ts'
import { type AppOptions, createApp, type Journal, type ParisApp } from '../../sdk/http/app.ts'
import { compileKernels } from '../support/kernels-wasm.ts'
import { Caller, TOKENS } from './support.ts'

let kernels: WebAssembly.Module | undefined

/** An engine on Wasm. */
export async function openEngine(): Promise<Engine> {
  kernels ??= compileKernels()
  return new Engine(createWasmBackend(kernels))
}

/** An app in this process, and its tenants. */
export interface Local {
  readonly app: ParisApp
  readonly alice: Caller
  readonly bob: Caller
}

/** Opens one that is ready; a test disposes of it. */
export async function local(options: Partial<AppOptions> = {}): Promise<Local> {
  const app = createApp({ engine: openEngine, auth: { tokens: TOKENS }, ...options })
  await app.ready()
  const served = {
    fetch: async (path: string, init?: RequestInit) => app.request(path, init),
    close: () => app.dispose(),
  }
  return { app, alice: new Caller(served), bob: new Caller(served, 'token-of-bob') }
}

/** A store that does nothing but what a test gives. */
export function journalWith(over: Partial<Journal>): Journal {
  const nothing = async () => {}
  return { created: nothing, appended: nothing, truncated: nothing, removed: nothing, ...over }
}
