import type { PageTier } from './pages.ts'

/** A page holds a power of two of tokens, with all heads of one layer, near this many bytes. */
const PAGE_BYTES = 1 << 22

/** log2 of the pages that a full layer has at least, so that a short session takes little more than it needs. */
const LEAST_PAGES_LOG2 = 3

/** Tokens a page, as a power of two. */
export function pageShift(heads: number, row: number, capacity: number): number {
  const most = Math.floor(Math.log2(Math.max(1, PAGE_BYTES / (2 * row * heads))))
  return Math.max(0, Math.min(most, Math.ceil(Math.log2(capacity)) - LEAST_PAGES_LOG2))
}

/** Where one layer's rows lie in a tier: page by page of tokens [heads, tokens, key | value]. */
export class LayerPages {
  private pages: number[] = []

  /** @param row bytes of a key, and of a value */
  constructor(
    readonly heads: number,
    readonly row: number,
    private readonly shift: number,
  ) {}

  /**
   * Takes the pages that `length` tokens need, or none of them.
   * @throws ParisError `out_of_memory`
   */
  async reserve(tier: PageTier, length: number): Promise<void> {
    const have = this.pages.length
    try {
      while (this.pages.length << this.shift < length) this.pages.push(await tier.take())
    } catch (error) {
      this.shrink(tier, have)
      throw error
    }
  }

  /** Whether pages for that many tokens have been taken. */
  holds(length: number): boolean {
    return this.pages.length << this.shift >= length
  }

  /** Gives back the pages beyond the first `length` tokens. */
  truncate(tier: PageTier, length: number): void {
    this.shrink(tier, Math.ceil(length / 2 ** this.shift))
  }

  private shrink(tier: PageTier, pages: number): void {
    for (const page of this.pages.splice(pages)) tier.give(page)
  }

  /** The address of a row. */
  at(tier: PageTier, head: number, position: number): number {
    const inner = (head << this.shift) + (position & ((1 << this.shift) - 1))
    return this.pages[position >>> this.shift] * tier.pageBytes + inner * 2 * this.row
  }

  /** Addresses of the rows [from, from + count) of a head. */
  run(tier: PageTier, head: number, from: number, count: number, out: Float64Array): void {
    for (let i = 0; i < count; i++) out[i] = this.at(tier, head, from + i)
  }

  /** The same pages, for a fork of their tier. */
  copy(): LayerPages {
    const copy = new LayerPages(this.heads, this.row, this.shift)
    copy.pages = [...this.pages]
    return copy
  }
}
