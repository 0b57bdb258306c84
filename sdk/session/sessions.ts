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

  async disposeAll(): Promise<void> {
    await Promise.all([...this.open].map((session) => session.dispose()))
  }
}
