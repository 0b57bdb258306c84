/** Looks for stop strings in text that comes in pieces; holds back what may be the beginning of one. */
export class StopStrings {
  private held = ''
  /** Whether a stop string has come. */
  stopped = false

  constructor(private readonly strings: readonly string[]) {}

  /** The text that is safe to tell; all before a stop string once one has come, nothing after it. */
  push(text: string): string {
    if (this.stopped) return ''
    this.held += text
    const at = this.strings.map((stop) => this.held.indexOf(stop)).filter((found) => found >= 0)
    if (at.length > 0) {
      this.stopped = true
      return this.tell(Math.min(...at))
    }
    return this.tell(this.held.length - this.beginning())
  }

  /** What was held back, at the end of all text. */
  end(): string {
    return this.stopped ? '' : this.tell(this.held.length)
  }

  private tell(count: number): string {
    const text = this.held.slice(0, count)
    this.held = this.held.slice(count)
    return text
  }

  /** Characters at the end that may begin a stop string. */
  private beginning(): number {
    let most = 0
    for (const stop of this.strings)
      for (let n = Math.min(stop.length - 1, this.held.length); n > most; n--)
        if (this.held.endsWith(stop.slice(0, n))) most = n
    return most
  }
}
