import type { Tokenizer } from './tokenizer.ts'

/** U+FFFD stands where the bytes of a character have not all come. */
const HALF = '�'
/** After so many tokens the character is taken as broken for good: none has more bytes. */
const LONGEST = 8

/** Text of tokens as they come, never half a character. */
export class TextStream {
  private readonly ids: number[] = []
  /** Tokens that are decoded again so that the ones after them join as in the whole text. */
  private context = 0
  private told = 0

  constructor(
    private readonly tokenizer: Pick<Tokenizer, 'decode'> | undefined,
    before: readonly number[] = [],
  ) {
    this.ids.push(...before.slice(-LONGEST))
    this.told = this.ids.length
  }

  /** The text that this token completes; empty while it has only begun a character. */
  push(id: number): string {
    this.ids.push(id)
    return this.take(this.ids.length - this.told >= LONGEST)
  }

  /** What is left at the end, whole or not. */
  end(): string {
    return this.take(true)
  }

  private take(anyway: boolean): string {
    if (!this.tokenizer || this.told === this.ids.length) return ''
    const before = this.tokenizer.decode(this.ids.slice(this.context, this.told))
    const all = this.tokenizer.decode(this.ids.slice(this.context))
    if (all.endsWith(HALF) && !anyway) return ''
    this.context = this.told
    this.told = this.ids.length
    return all.slice(before.length)
  }
}
