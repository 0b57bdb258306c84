import type { Engine } from '../engine.ts'
import { ParisError } from '../errors.ts'
import { goldenCheck } from './golden.ts'
import { randomId } from './ids.ts'
import { Refusal } from './problem.ts'

/** `cold` before the first use, `lost` while an engine is opened again. */
export type HostState = 'cold' | 'warming' | 'ready' | 'lost' | 'closed'

/** Milliseconds between attempts to open an engine again: within 5 s of the loss there are ten of them. */
const BACKOFF = [0, 50, 100, 200, 400, 800, 800, 800, 800, 800] as const

/** Owns the engine: opens and checks it at the first use, and again after its device was lost. */
export class Host {
  state: HostState = 'cold'
  /** Changes with every engine: sessions of an earlier one are gone. */
  epoch = randomId(8)
  /** Engines opened, and devices lost. */
  readonly counts = { opened: 0, lost: 0 }
  private engine: Engine | undefined
  private opening: Promise<Engine> | undefined
  /** Why the latest attempts to open one were given up. */
  failure: unknown

  constructor(
    private readonly given: Engine | (() => Promise<Engine>),
    private readonly onLost: (engine: Engine) => void,
    private readonly warm: (engine: Engine) => Promise<void>,
  ) {}

  /** The engine if it is open. */
  get current(): Engine | undefined {
    return this.engine
  }

  /** The engine, opened and checked. @throws ParisError `backend_unavailable`, `device_lost`, `not_ready` */
  async ready(): Promise<Engine> {
    if (this.state === 'closed') throw closedError()
    if (this.engine) return this.engine
    this.opening ??= this.open(this.counts.lost > 0 && this.owned ? BACKOFF : [0]).finally(() => {
      this.opening = undefined
    })
    return this.opening
  }

  /** Lets an engine go whose device was lost, and opens another. */
  lost(engine: Engine): void {
    if (engine !== this.engine || this.state === 'closed') return
    this.engine = undefined
    this.state = 'lost'
    this.counts.lost++
    this.onLost(engine)
    if (this.owned) void engine.dispose().catch(() => {})
    this.ready().catch(() => {})
  }

  async dispose(): Promise<void> {
    const { engine, opening } = this
    this.state = 'closed'
    this.engine = undefined
    await opening?.catch(() => {})
    await engine?.dispose()
  }

  private async open(waits: readonly number[]): Promise<Engine> {
    let failure: unknown
    for (const wait of waits) {
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait))
      if (this.isClosed()) throw closedError()
      try {
        return await this.openOnce()
      } catch (error) {
        failure = error
      }
    }
    if (!this.isClosed()) this.state = 'cold'
    this.failure = failure
    throw failure
  }

  private async openOnce(): Promise<Engine> {
    if (this.state === 'cold') this.state = 'warming'
    const engine = await this.source()
    try {
      await goldenCheck(engine)
      await this.warm(engine)
    } catch (error) {
      if (this.owned) await engine.dispose().catch(() => {})
      throw error
    }
    if (this.isClosed()) {
      await engine.dispose()
      throw closedError()
    }
    this.engine = engine
    this.state = 'ready'
    this.failure = undefined
    this.epoch = randomId(8)
    this.counts.opened++
    void engine.gpu?.lost.then(() => this.lost(engine))
    return engine
  }

  /** Whether engines are opened here, and so disposed of here. */
  private get owned(): boolean {
    return typeof this.given === 'function'
  }

  private isClosed(): boolean {
    return this.state === 'closed'
  }

  private async source(): Promise<Engine> {
    if (typeof this.given === 'function') return this.given()
    if (this.counts.lost === 0) return this.given
    throw new ParisError('device_lost', {
      where: 'createApp: engine',
      got: 'an engine whose device was lost',
      want: 'an open one',
      fix: 'Hand createApp a function that opens an engine, so that it can open another.',
    })
  }
}

function closedError(): Refusal {
  const parts = { got: 'a handler that is being closed', want: 'an open one', fix: 'Go to another host.' }
  return new Refusal('not_ready', { where: 'the server', ...parts }, { retryAfter: 1 })
}
