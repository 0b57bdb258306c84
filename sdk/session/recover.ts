import type { Backend } from '../backend.ts'
import type { OpenPages } from '../cache/pages.ts'
import type { SessionConfig } from '../config.ts'
import { describe, ParisError } from '../errors.ts'
import { disposedError, SessionState } from './state.ts'

const WHERE = 'engine.recover'

/** See `Engine.recover`. Waits for the calls made before; those that the lost device failed have rolled back. */
export async function recoverState(
  lost: SessionState | undefined,
  backend: Backend,
  pages: OpenPages,
  admit: (config: SessionConfig) => void,
): Promise<SessionState> {
  if (!(lost instanceof SessionState))
    throw new ParisError('bad_config', {
      where: `${WHERE}(session)`,
      got: describe(lost),
      want: 'a session of an engine',
      fix: 'Hand in the session that the lost engine gave out.',
    })
  if (lost.disposed) throw disposedError(WHERE)
  return lost.queue.run(async () => {
    if (lost.cache && !lost.cache.offload)
      throw new ParisError('device_lost', {
        where: WHERE,
        got: 'a session whose rows were on the device',
        want: 'one whose rows are on the host',
        fix: "Restore a snapshot, or append its tokens again; offload: 'always' keeps rows on the host.",
      })
    admit({ ...lost.config, store: lost.cache?.store ?? lost.config.store })
    const state = new SessionState(backend, lost.config, pages)
    try {
      await lost.forkTo(state, 'move')
    } catch (error) {
      await state.dispose()
      throw error
    }
    // Calls that wait behind this one must not find the pages that are another's now.
    await lost.close()
    return state
  })
}
