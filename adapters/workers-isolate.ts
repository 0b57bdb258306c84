import { Refusal } from '../sdk/http/problem.ts'
import { type Backend, Engine, type Session } from '../sdk/index.ts'

/**
 * Engines of the objects in this isolate, by object. An object that is evicted tells nobody: its engine counts until it
 * is collected, or its object comes back.
 */
const engines = new Map<string, WeakRef<ObjectEngine>>()

/** The engine of an object that has one session: it is opened only where all of its isolate fit into one bound. */
export class ObjectEngine extends Engine {
  private bytes = 0

  /** @param most bytes of the sessions of all objects in this isolate, as `estimate` counts them */
  constructor(
    backend: Backend,
    object: string,
    private readonly most: number,
  ) {
    super(backend)
    engines.set(object, new WeakRef(this))
  }

  /** @throws ParisError `out_of_memory`, and as the engine's */
  override createSession(...[options, call]: Parameters<Engine['createSession']>): Promise<Session> {
    return this.sharing(
      () => this.estimate(options).total,
      () => super.createSession(options, call),
    )
  }

  /** @param options must have maxBytes @throws ParisError `out_of_memory`, and as the engine's */
  override restore(...[stream, options]: Parameters<Engine['restore']>): Promise<Session> {
    return this.sharing(
      () => options?.maxBytes ?? this.most,
      () => super.restore(stream, options),
    )
  }

  /** The session is gone. */
  release(): void {
    this.bytes = 0
  }

  private async sharing(need: () => number, open: () => Promise<Session>): Promise<Session> {
    const bytes = need()
    const others = this.beside()
    if (others + bytes > this.most) throw isolateFull(bytes, others, this.most)
    this.bytes = bytes
    try {
      return await open()
    } catch (error) {
      this.bytes = 0
      throw error
    }
  }

  /** Bytes of the sessions of all other objects. */
  private beside(): number {
    let sum = 0
    for (const [object, reference] of engines) {
      const other = reference.deref()
      if (!other) engines.delete(object)
      else if (other !== this) sum += other.bytes
    }
    return sum
  }
}

function isolateFull(bytes: number, others: number, most: number): Refusal {
  return new Refusal(
    'out_of_memory',
    {
      where: 'the isolate',
      got: `${bytes} bytes beside ${others} of other sessions`,
      want: `at most ${most} in all`,
      fix: 'Try again: sessions that are idle leave. Lower capacity, layers or heads, or take a 16-bit store.',
    },
    { retryAfter: 5 },
  )
}
