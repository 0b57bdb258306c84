import { type Answer, answerBytes } from './answer.ts'
import { Refusal } from './problem.ts'

interface Kept {
  readonly print: string
  readonly answer: Promise<Answer>
  bytes: number
}

/** Answers by Idempotency-Key: the same request under the same key is answered the same, and done once. */
export class Replays {
  private readonly kept = new Map<string, Kept>()
  private bytes = 0

  /** @param most answers and @param mostBytes of them that are kept; the oldest go first */
  constructor(
    private readonly most: number,
    private readonly mostBytes: number,
  ) {}

  /**
   * @param print what the request says, so that another one under the same key is refused
   * @throws ParisError `idempotency_mismatch`, and whatever the task throws: a refusal is not kept, since it changed nothing
   */
  async once(key: string | undefined, print: string, task: () => Promise<Answer>): Promise<Answer> {
    if (key === undefined) return task()
    const known = this.kept.get(key)
    if (known) {
      if (known.print === print) {
        const answer = await known.answer.catch(() => undefined)
        // The first request may have been aborted and taken back: then this one does the work.
        return answer ? { ...answer, replayed: true } : this.once(key, print, task)
      }
      throw new Refusal('idempotency_mismatch', {
        where: 'Idempotency-Key',
        got: 'a key that stood for another request',
        want: 'a key of its own for each request',
        fix: 'Take a fresh random key for each call, and the same one only to retry it.',
      })
    }
    const kept: Kept = { print, answer: task(), bytes: 0 }
    this.kept.set(key, kept)
    try {
      const answer = await kept.answer
      if (this.kept.get(key) !== kept) return answer
      kept.bytes = answerBytes(answer)
      this.bytes += kept.bytes
      this.trim()
      return answer
    } catch (error) {
      if (this.kept.get(key) === kept) this.kept.delete(key)
      throw error
    }
  }

  private trim(): void {
    for (const [key, { bytes }] of this.kept) {
      if (this.kept.size <= this.most && this.bytes <= this.mostBytes) return
      this.kept.delete(key)
      this.bytes -= bytes
    }
  }
}
