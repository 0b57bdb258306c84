import { ParisError } from '../errors.ts'

/**
 * Where rows that left the device are kept: pages of equal size, seen as one address space in which page p begins at
 * p · pageBytes. A row is the key and the value of one token and head side by side. A tier that has to wait, as one on a
 * file, answers with promises; the caller awaits each answer before it makes the next call on the same rows. What it throws
 * refuses the session's call, which then has changed nothing and may be made again: a ParisError, `out_of_memory` where
 * there is no room and `internal` for the rest.
 */
export interface PageTier {
  readonly pageBytes: number
  /** Bytes of the pages taken and not given back. */
  bytes(): number
  /** One more page, of undefined contents. @returns its number @throws ParisError `out_of_memory` */
  take(): number | Promise<number>
  give(page: number): void
  /**
   * Reads rows into two arrays, side by side: keys and values, `row` bytes each.
   * @param at addresses, the first `count` of them
   */
  gather(at: Float64Array, count: number, row: number, keys: Uint8Array, values: Uint8Array): void | Promise<void>
  /** The inverse; what is left out stays as it is. */
  scatter(at: Float64Array, count: number, row: number, keys?: Uint8Array, values?: Uint8Array): void | Promise<void>
  /**
   * Memory for the two arrays of a gather that the tier's own gather reaches best; any other does as well. Whoever asked
   * keeps it as long as it likes and gives nothing back.
   * @throws ParisError `out_of_memory`
   */
  room?(bytes: number): Uint8Array
  /** A tier with the same pages under the same numbers, which shares nothing that either can change. */
  fork(): PageTier | Promise<PageTier>
  /** Gives everything back; done when it answers. Called once. */
  dispose(): void | Promise<void>
}

/** Opens an empty tier of pages of that size. */
export type OpenPages = (pageBytes: number) => PageTier

/** Where the buffers of pages come from. */
export interface PageSource {
  /** A buffer of undefined contents, and a number that no other open one has. @throws RangeError where there is no room */
  open(bytes: number): { readonly buffer: ArrayBufferLike; readonly id: number }
  /** Nobody reads or writes it any more. */
  close(id: number): void
}

/** Buffers that the garbage collector frees; nobody asks for their numbers. */
const HEAP: PageSource = { open: (bytes) => ({ buffer: new ArrayBuffer(bytes), id: 0 }), close: () => {} }

interface Page {
  readonly bytes: Uint8Array
  readonly id: number
  /** Tiers that hold it: a page of several is copied by the first of them that writes. */
  owners: number
}

/** Rows whose lines are all asked for before the first of them is copied, so that the waits for memory overlap. */
const BLOCK = 64
/** Bytes that memory gives at once. */
const LINE = 64

/** Pages in host memory, outside any backend's. They last as long as the session, whatever becomes of the device. */
export class MemoryPages implements PageTier {
  protected pages: (Page | undefined)[] = []
  private free: number[] = []
  /** What the lines asked for held, so that asking is not optimized away. */
  protected touched = 0

  /**
   * @param mostPages refuses more than that
   * @param source of the pages' buffers
   */
  constructor(
    readonly pageBytes: number,
    protected readonly mostPages = Number.POSITIVE_INFINITY,
    private readonly source: PageSource = HEAP,
  ) {}

  bytes(): number {
    return (this.pages.length - this.free.length) * this.pageBytes
  }

  take(): number {
    if (this.pages.length - this.free.length >= this.mostPages) throw this.full(this.pageBytes)
    const fresh = this.allocate()
    const page = this.free.pop() ?? this.pages.length
    this.pages[page] = fresh
    return page
  }

  give(page: number): void {
    const held = this.pages[page]
    if (!held) return
    this.pages[page] = undefined
    this.free.push(page)
    this.drop(held)
  }

  gather(at: Float64Array, count: number, row: number, keys: Uint8Array, values: Uint8Array): void {
    for (let from = 0; from < count; from += BLOCK)
      this.gatherBlock(at, from, Math.min(count, from + BLOCK), row, keys, values)
  }

  /** Rows [from, to) of a gather. */
  protected gatherBlock(
    at: Float64Array,
    from: number,
    to: number,
    row: number,
    keys: Uint8Array,
    values: Uint8Array,
  ): void {
    const { pages, pageBytes } = this
    let sum = 0
    for (let i = from; i < to; i++) {
      const page = Math.floor(at[i] / pageBytes)
      const { bytes } = pages[page] as Page
      const start = at[i] - page * pageBytes
      const last = start + 2 * row - 1
      for (let line = start; line < last; line += LINE) sum += bytes[line]
      // A page need not begin where a line does.
      sum += bytes[last]
    }
    this.touched = sum
    for (let i = from; i < to; i++) {
      const page = Math.floor(at[i] / pageBytes)
      const { bytes } = pages[page] as Page
      const start = at[i] - page * pageBytes
      keys.set(bytes.subarray(start, start + row), i * row)
      values.set(bytes.subarray(start + row, start + 2 * row), i * row)
    }
  }

  scatter(at: Float64Array, count: number, row: number, keys?: Uint8Array, values?: Uint8Array): void {
    for (let i = 0; i < count; i++) {
      const page = Math.floor(at[i] / this.pageBytes)
      const bytes = this.own(page)
      const to = at[i] - page * this.pageBytes
      if (keys) bytes.set(keys.subarray(i * row, (i + 1) * row), to)
      if (values) bytes.set(values.subarray(i * row, (i + 1) * row), to + row)
    }
  }

  fork(): MemoryPages {
    return this.shareWith(new MemoryPages(this.pageBytes, this.mostPages, this.source))
  }

  /** Makes an empty tier of the same source this one's fork. */
  protected shareWith<T extends MemoryPages>(copy: T): T {
    copy.pages = [...this.pages]
    copy.free = [...this.free]
    for (const page of this.pages) if (page) page.owners++
    return copy
  }

  dispose(): void | Promise<void> {
    const { pages } = this
    this.pages = []
    this.free = []
    for (const page of pages) if (page) this.drop(page)
  }

  private drop(page: Page): void {
    page.owners--
    if (page.owners === 0) this.source.close(page.id)
  }

  /** The page for writing: nobody else's. */
  private own(page: number): Uint8Array {
    const held = this.pages[page] as Page
    if (held.owners === 1) return held.bytes
    const fresh = this.allocate()
    fresh.bytes.set(held.bytes)
    held.owners--
    this.pages[page] = fresh
    return fresh.bytes
  }

  private allocate(): Page {
    try {
      const { buffer, id } = this.source.open(this.pageBytes)
      return { bytes: new Uint8Array(buffer), id, owners: 1 }
    } catch (cause) {
      throw this.full(this.pageBytes, cause)
    }
  }

  protected full(bytes: number, cause?: unknown): ParisError {
    return new ParisError('out_of_memory', {
      where: 'the host’s pages of rows',
      got: `${bytes} bytes more beside ${this.bytes()}`,
      want: 'what the host has left',
      fix: 'The session still holds what it held: go on reading it, truncate it, or dispose of others.',
      cause,
    })
  }
}

export const memoryPages: OpenPages = (pageBytes) => new MemoryPages(pageBytes)
