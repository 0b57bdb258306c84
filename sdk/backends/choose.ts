import type { Backend } from '../backend.ts'
import { BackendUnavailable, ParisError } from '../errors.ts'

/** A backend that can be tried. */
export interface Candidate {
  readonly name: Backend['name']
  /** @throws BackendUnavailable where it cannot run here; any other error stops the choice */
  readonly open: () => Promise<Backend>
}

/** What to run on: `auto` takes the first that can run, in the order webgpu, wasm, reference. */
export type Device = 'auto' | Backend['name']

/**
 * Opens the first candidate that can run, in the order given.
 * @returns it, and those passed over with their reasons
 * @throws ParisError `backend_unavailable` where none can, `bad_config` for an unknown device
 */
export async function chooseBackend(device: Device, candidates: readonly Candidate[]) {
  const tried = candidates.filter(({ name }) => device === 'auto' || name === device)
  if (tried.length === 0) {
    throw new ParisError('bad_config', {
      where: 'createEngine: device',
      got: JSON.stringify(device) ?? String(device),
      want: ['auto', ...candidates.map(({ name }) => name)].map((name) => `'${name}'`).join(' | '),
      fix: "Leave it out for 'auto'.",
    })
  }
  const passedOver: { name: string; reason: string }[] = []
  for (const { name, open } of tried) {
    try {
      return { backend: await open(), passedOver }
    } catch (error) {
      if (!(error instanceof BackendUnavailable)) throw error
      passedOver.push({ name, reason: error.got })
    }
  }
  const reasons = passedOver.map(({ name, reason }) => `${name}: ${reason}`).join('; ')
  throw new BackendUnavailable(device, reasons, "Take device: 'auto' or 'reference'.")
}
