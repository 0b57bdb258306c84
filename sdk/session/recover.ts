import type { Backend } from '../backend.ts'
import type { OpenPages } from '../cache/pages.ts'
import { ParisError } from '../errors.ts'
import { checkBudgets } from './placement.ts'
import { disposedError, SessionState } from './state.ts'

const WHERE = 'engine.recover'

/** See `Engine.recover`. Waits for the calls made before; those that the lost device failed have rolled back. */
export async function recoverState(lost: SessionState, backend: Backend, pages: OpenPages): Promise<SessionState> {
  if (lost.disposed) throw disposedError(WHERE)
  return lost.queue.run(async () => {
    if (lost.cache && !lost.cache.offload)
      throw new ParisError('device_lost', {
        where: WHERE,
        got: 'a session whose rows were on the device',
        want: 'one whose rows are on the host',
        fix: "Restore a snapshot, or append its tokens again; offload: 'always' keeps rows on the host.",
      })
    checkBudgets(backend, lost.config, WHERE)
    const state = new SessionState(backend, lost.config, pages)
    try {
      await lost.forkTo(state)
    } catch (error) {
      await state.dispose()
      throw error
    }
    return state
  })
}
