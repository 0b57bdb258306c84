import { u32View } from '../bytes.ts'
import { ParisError } from '../errors.ts'
import type { SessionState } from './state.ts'

/** How many values from GPUBuffers were stored as 0, as of the commands submitted. Waits for the device. */
export async function refusedValues({ backend, cache, scratch }: SessionState): Promise<number> {
  if (!cache || !backend.recorder) return 0
  return u32View(await backend.read(scratch.get('refused'), 0, 4))[0]
}

/** Tells, once, of values that were stored as 0 since the last look. @throws ParisError `not_finite` */
export async function checkRefused(state: SessionState, where: string): Promise<void> {
  const { refused } = state
  if (!refused.unread) return
  const count = await refusedValues(state)
  refused.unread = false
  if (count === refused.told) return
  const fresh = count - refused.told
  refused.told = count
  throw new ParisError('not_finite', {
    where,
    got: `${fresh} values in the keys and values of encodeAppend or encodePrefill that are NaN, Inf or beyond the store`,
    want: 'finite numbers',
    fix: 'They are stored as 0, and this is said once: go on with that, or truncate and append again.',
  })
}

/** What a session knows of such values holds for its copy. */
export function copyRefused(from: SessionState, to: SessionState): void {
  if (!from.backend.recorder) return
  from.backend.copy(from.scratch.get('refused'), 0, to.scratch.get('refused'), 0, 4)
  Object.assign(to.refused, from.refused)
}
