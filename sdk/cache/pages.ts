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
  /** A tier with the same pages under the same numbers, which shares nothing that either can change. */
  fork(): PageTier | Promise<PageTier>
  /** Gives everything back; done when it answers. Called once. */
  dispose(): void | Promise<void>
}

/** Opens an empty tier of pages of that size. */
export type OpenPages = (pageBytes: number) => PageTier

interface Page {
  readonly bytes: Uint8Array
  readonly buffer: ArrayBuffer
  /** Tiers that hold it: a page of several is copied by the first of them that writes. */
  owners: number
}

/** Pages in host memory, outside any backend's. They last as long as the session, whatever becomes of the device. */
export class MemoryPages implements PageTier {
  private pages: (Page | undefined)[] = []
  private free: number[] = []

  /** @param mostPages refuses more than that */
  constructor(
    readonly pageBytes: number,
    private readonly mostPages = Number.POSITIVE_INFINITY,
  ) {}

  bytes(): number {
    return (this.pages.length - this.free.length) * this.pageBytes
  }

  take(): number {
    if (this.pages.length - this.free.length >= this.mostPages) throw this.full()
    const fresh = this.allocate()
    const page = this.free.pop() ?? this.pages.length
    this.pages[page] = fresh
    return page
  }

  give(page: number): void {
    const held = this.pages[page]
    if (!held) return
    held.owners--
    this.pages[page] = undefined
    this.free.push(page)
  }

  gather(at: Float64Array, count: number, row: number, keys: Uint8Array, values: Uint8Array): void {
    const { pages, pageBytes } = this
    for (let i = 0; i < count; i++) {
      const page = Math.floor(at[i] / pageBytes)
      const { buffer } = pages[page] as Page
      const from = at[i] - page * pageBytes
      keys.set(new Uint8Array(buffer, from, row), i * row)
      values.set(new Uint8Array(buffer, from + row, row), i * row)
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
    const copy = new MemoryPages(this.pageBytes, this.mostPages)
    copy.pages = [...this.pages]
    copy.free = [...this.free]
    for (const page of this.pages) if (page) page.owners++
    return copy
  }

  dispose(): void {
    for (const page of this.pages) if (page) page.owners--
    this.pages = []
    this.free = []
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
      const buffer = new ArrayBuffer(this.pageBytes)
      return { bytes: new Uint8Array(buffer), buffer, owners: 1 }
    } catch (cause) {
      throw this.full(cause)
    }
  }

  private full(cause?: unknown): ParisError {
    return new ParisError('out_of_memory', {
      where: 'the host’s pages of rows',
      got: `${this.pageBytes} bytes more beside ${this.bytes()}`,
      want: 'what the host has left',
      fix: 'The session still holds what it held: go on reading it, truncate it, or dispose of others.',
      cause,
    })
  }
}

export const memoryPages: OpenPages = (pageBytes) => new MemoryPages(pageBytes)
