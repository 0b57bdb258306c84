import { orFired } from './call.ts'

/** Runs so many tasks at once; the others wait in the order in which they came. */
export class Turns {
  private running = 0
  private readonly waiting: (() => void)[] = []

  constructor(private readonly most: number) {}

  /** @throws ParisError `aborted`, `deadline` where the signal fires before its turn */
  async run<T>(signal: AbortSignal, task: () => Promise<T>): Promise<T> {
    if (this.running < this.most) this.running++
    else await this.wait(signal)
    try {
      return await task()
    } finally {
      this.pass()
    }
  }

  private async wait(signal: AbortSignal): Promise<void> {
    let begin: () => void = () => {}
    const turn = new Promise<void>((resolve) => {
      begin = resolve
    })
    this.waiting.push(begin)
    try {
      await orFired(signal, turn)
    } catch (error) {
      const at = this.waiting.indexOf(begin)
      if (at >= 0) this.waiting.splice(at, 1)
      else this.pass()
      throw error
    }
  }

  /** To the next one that waits, if one does. */
  private pass(): void {
    const begin = this.waiting.shift()
    if (begin) begin()
    else this.running--
  }
}
