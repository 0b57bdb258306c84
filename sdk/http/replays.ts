import { type Answer, answerBytes } from './answer.ts'
import { orFired } from './call.ts'
import { Refusal } from './problem.ts'

interface Kept {
  readonly print: string
  readonly answer: Promise<Answer>
  /** Of the answer, once it is there. */
  bytes: number
  /** Forgets it. */
  readonly drop: () => void
}

/** The answers that all `Replays` of a handler keep: beyond so many bytes together the oldest go first. */
export class ReplayPool {
  private readonly kept = new Set<Kept>()
  private total = 0

  constructor(private readonly mostBytes: number) {}

  /** Of all answers that are kept. */
  get bytes(): number {
    return this.total
  }

  add(kept: Kept): void {
    this.kept.add(kept)
    this.total += kept.bytes
    for (const oldest of this.kept) {
      if (this.total <= this.mostBytes) return
      oldest.drop()
    }
  }

  delete(kept: Kept): void {
    if (this.kept.delete(kept)) this.total -= kept.bytes
  }
}

/** Answers by Idempotency-Key: the same request under the same key is answered the same, and done once. */
export class Replays {
  private readonly kept = new Map<string, Kept>()
  private bytes = 0

  /** @param limits answers and their bytes that are kept here; the oldest go first, and a larger answer is not kept */
  constructor(
    private readonly limits: { readonly replays: number; readonly replayBytes: number },
    private readonly pool: ReplayPool,
  ) {}

  /**
   * @param print what the request says, so that another one under the same key is refused
   * @param options signal: ends the wait for an earlier request under the key; stands: whether an earlier answer still
   * holds, without which the task is done anew
   * @throws ParisError `idempotency_mismatch`, and whatever the task throws: a refusal is not kept, since it changed nothing
   */
  async once(
    key: string | undefined,
    print: string,
    task: () => Promise<Answer>,
    options: { readonly signal: AbortSignal; readonly stands?: (answer: Answer) => boolean },
  ): Promise<Answer> {
    if (key === undefined) return task()
    const known = this.kept.get(key)
    if (known) {
      if (known.print !== print) throw mismatch()
      const earlier = known.answer.catch(() => undefined)
      const answer = await orFired(options.signal, earlier)
      if (answer && (options.stands?.(answer) ?? true)) return { ...answer, replayed: true }
      // The first request was taken back, or what it made is gone: then this one does the work.
      known.drop()
      return this.once(key, print, task, options)
    }
    const kept: Kept = { print, answer: task(), bytes: 0, drop: () => this.drop(key, kept) }
    this.kept.set(key, kept)
    try {
      const answer = await kept.answer
      this.keep(key, kept, answerBytes(answer))
      return answer
    } catch (error) {
      kept.drop()
      throw error
    }
  }

  /** Forgets all answers. */
  clear(): void {
    for (const { drop } of this.kept.values()) drop()
  }

  private keep(key: string, kept: Kept, bytes: number): void {
    if (this.kept.get(key) !== kept) return
    const { replays, replayBytes } = this.limits
    if (bytes > replayBytes) {
      kept.drop()
      return
    }
    kept.bytes = bytes
    this.bytes += bytes
    this.pool.add(kept)
    for (const { drop } of this.kept.values()) {
      if (this.kept.size <= replays && this.bytes <= replayBytes) return
      drop()
    }
  }

  private drop(key: string, kept: Kept): void {
    if (this.kept.get(key) !== kept) return
    this.kept.delete(key)
    this.bytes -= kept.bytes
    this.pool.delete(kept)
  }
}

/** What another request under a known key is told. */
export function mismatch(): Refusal {
  return new Refusal('idempotency_mismatch', {
    where: 'Idempotency-Key',
    got: 'a key that stood for another request',
    want: 'a key of its own for each request',
    fix: 'Take a fresh random key for each call, and the same one only to retry it.',
  })
}
