import { afterAll, beforeAll, describe } from 'vitest'
import type { Backend } from '../../sdk/backend.ts'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { openWebgpu } from './gpu.ts'
import { compileKernels } from './kernels-wasm.ts'

/** A backend under test, or the reason why it cannot run here. */
export interface BackendCase {
  readonly name: Backend['name']
  /** Opens one; throws `BackendUnavailable` with the reason where it cannot run. */
  readonly open: () => Promise<Backend>
}

export const backendCases: readonly BackendCase[] = [
  { name: 'reference', open: async () => createReferenceBackend() },
  { name: 'wasm', open: async () => createWasmBackend(compileKernels()) },
  { name: 'webgpu', open: () => openWebgpu() },
]

/**
 * Runs one suite on every backend that can run here; prints why the others are skipped.
 * @param body registers tests; `backend()` is valid inside them
 */
export function onEveryBackend(suite: string, body: (backend: () => Backend, name: Backend['name']) => void): void {
  for (const { name, open, reason } of available) {
    if (!open) {
      describe.skip(`${suite} on ${name} (skipped: ${reason})`, () => {})
      continue
    }
    describe(`${suite} on ${name}`, () => {
      let backend: Backend
      beforeAll(async () => {
        backend = await open()
      })
      afterAll(() => backend?.dispose())
      body(() => backend, name)
    })
  }
}

const available = await Promise.all(
  backendCases.map(async ({ name, open }) => {
    try {
      const probe = await open()
      probe.dispose()
      return { name, open, reason: '' }
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error)
      console.log(`${name}: skipped, ${reason}`)
      return { name, open: undefined, reason }
    }
  }),
)
