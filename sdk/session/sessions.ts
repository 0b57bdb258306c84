import { Session } from './session.ts'
import type { SessionState } from './state.ts'

/** The open sessions of an engine. */
export class Sessions {
  private readonly open = new Set<Session>()

  /** A session over this state, counted as open until it is disposed of. */
  add(state: SessionState): Session {
    const session = new Session(state, this)
    this.open.add(session)
    return session
  }

  delete(session: Session): void {
    this.open.delete(session)
  }

  /** Those that calls under way still add, such as forks, too. Throws only once it has been through all of them. */
  async disposeAll(): Promise<void> {
    const failed: unknown[] = []
    while (this.open.size > 0)
      await Promise.all([...this.open].map((session) => session.dispose().catch((error) => failed.push(error))))
    if (failed.length > 0) throw failed[0]
  }
}
