import { afterAll, beforeAll, describe } from 'vitest'
import type { Backend } from '../../sdk/backend.ts'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { BackendUnavailable } from '../../sdk/errors.ts'
import { shareWebgpu } from './gpu.ts'
import { compileKernels } from './kernels-wasm.ts'

/** A backend under test, or the reason why it cannot run here. */
export interface BackendCase {
  readonly name: Backend['name']
  /** Opens one; throws `BackendUnavailable` with the reason where it cannot run. */
  readonly open: () => Promise<Backend>
}

let kernels: WebAssembly.Module | undefined

export const backendCases: readonly BackendCase[] = [
  { name: 'reference', open: async () => createReferenceBackend() },
  {
    name: 'wasm',
    open: async () => {
      kernels ??= compileKernels()
      return createWasmBackend(kernels)
    },
  },
  { name: 'webgpu', open: () => shareWebgpu() },
]

/** A suite by name, with the reason to leave it out where a software GPU is all there is, if there is one. */
type Suite = string | { readonly name: string; readonly notOnSoftwareGpu: string }

/** What a suite knows of the backend that it runs on. */
export interface Here {
  /** All cases, or on a software GPU `some` of them, and prints that: each of the others would have it compile for seconds. */
  readonly fewer: <T>(what: string, all: readonly T[], some: readonly T[]) => readonly T[]
}

/**
 * Runs one suite on every backend that can run here; prints why the others are skipped. PARISKV_TEST=full leaves nothing
 * out on a software GPU.
 * @param body registers tests; `backend()` is valid inside them
 */
export function onEveryBackend(
  given: Suite,
  body: (backend: () => Backend, name: Backend['name'], here: Here) => void,
): void {
  const { name: suite, notOnSoftwareGpu = '' } = typeof given === 'string' ? { name: given } : given
  for (const { name, open, software, reason } of available) {
    const slow = software && process.env.PARISKV_TEST !== 'full'
    const left = slow && notOnSoftwareGpu
    const skipped = left ? `a software GPU: ${left}; PARISKV_TEST=full runs it` : reason
    if (left) console.log(`${suite} on ${name}: skipped, ${skipped}`)
    if (left || !open) {
      describe.skip(`${suite} on ${name} (skipped: ${skipped})`, () => {})
      continue
    }
    const fewer: Here['fewer'] = (what, all, some) => {
      if (!slow) return all
      const why = 'a software GPU compiles each for seconds; PARISKV_TEST=full runs all'
      console.log(`${suite} on ${name}: ${some.length} of ${all.length} ${what}, ${why}`)
      return some
    }
    describe(`${suite} on ${name}`, () => {
      let backend: Backend
      beforeAll(async () => {
        backend = await open()
      })
      afterAll(() => backend?.dispose())
      body(() => backend, name, { fewer })
    })
  }
}

const available = await Promise.all(
  backendCases.map(async ({ name, open }) => {
    try {
      const probe = await open()
      const software = probe.recorder?.device.adapterInfo.isFallbackAdapter ?? false
      probe.dispose()
      return { name, open, software, reason: '' }
    } catch (error) {
      if (!(error instanceof BackendUnavailable)) throw error
      const reason = error.message
      console.log(`${name}: skipped, ${reason}`)
      return { name, open: undefined, software: false, reason }
    }
  }),
)
