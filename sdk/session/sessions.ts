import type { Session } from './session.ts'

/** The open sessions of an engine. */
export class Sessions {
  private readonly open = new Set<Session>()

  add(session: Session): void {
    this.open.add(session)
  }

  delete(session: Session): void {
    this.open.delete(session)
  }

  /** Those that calls under way still add, such as forks, too. */
  async disposeAll(): Promise<void> {
    while (this.open.size > 0) await Promise.all([...this.open].map((session) => session.dispose()))
  }
}
