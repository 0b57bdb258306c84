import { randomUUID } from 'node:crypto'
import { copyFile, type FileHandle, open, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { type OpenPages, type PageTier, ParisError } from '../sdk/index.ts'

/** Reads and writes under way at once: what keeps a disk busy. */
const AT_ONCE = 64

/** Pages in one file, for zones that are larger than memory. It is deleted at `dispose`. */
class FilePages implements PageTier {
  private readonly path: string
  private readonly file: Promise<FileHandle>
  private pages = 0
  private free: number[] = []

  constructor(
    readonly pageBytes: number,
    private readonly folder: string,
    copyOf?: { readonly path: string; readonly pages: number; readonly free: readonly number[] },
  ) {
    this.path = join(folder, `pariskv-${randomUUID()}.pages`)
    const made = copyOf ? copyFile(copyOf.path, this.path).then(() => open(this.path, 'r+')) : open(this.path, 'wx+')
    this.file = made.catch((cause) => Promise.reject(failed(this.path, cause)))
    this.file.catch(() => {})
    if (!copyOf) return
    this.pages = copyOf.pages
    this.free = [...copyOf.free]
  }

  bytes(): number {
    return (this.pages - this.free.length) * this.pageBytes
  }

  async take(): Promise<number> {
    const file = await this.file
    const given = this.free.pop()
    if (given !== undefined) return given
    // A full disk is found out here, before any row is promised a place.
    await this.guard(writeAll(file, new Uint8Array(this.pageBytes), this.pages * this.pageBytes))
    return this.pages++
  }

  give(page: number): void {
    this.free.push(page)
  }

  async gather(at: Float64Array, count: number, row: number, keys: Uint8Array, values: Uint8Array): Promise<void> {
    const file = await this.file
    await this.guard(
      eachAtOnce(runsOf(at, count, 2 * row), async ({ from, to, place }) => {
        const bytes = await readAll(file, (to - from) * 2 * row, place)
        for (let i = from, b = 0; i < to; i++, b += 2 * row) {
          keys.set(bytes.subarray(b, b + row), i * row)
          values.set(bytes.subarray(b + row, b + 2 * row), i * row)
        }
      }),
    )
  }

  async scatter(at: Float64Array, count: number, row: number, keys?: Uint8Array, values?: Uint8Array): Promise<void> {
    const file = await this.file
    await this.guard(
      eachAtOnce(runsOf(at, count, 2 * row), async ({ from, to, place }) => {
        const size = (to - from) * 2 * row
        const bytes = keys && values ? new Uint8Array(size) : await readAll(file, size, place)
        for (let i = from, b = 0; i < to; i++, b += 2 * row) {
          if (keys) bytes.set(keys.subarray(i * row, (i + 1) * row), b)
          if (values) bytes.set(values.subarray(i * row, (i + 1) * row), b + row)
        }
        await writeAll(file, bytes, place)
      }),
    )
  }

  async fork(): Promise<FilePages> {
    const { path, pages, free } = this
    const copy = new FilePages(this.pageBytes, this.folder, { path, pages, free })
    try {
      await copy.file
      return copy
    } catch (error) {
      await copy.dispose()
      throw error
    }
  }

  async dispose(): Promise<void> {
    this.pages = 0
    this.free = []
    const file = await this.file.catch(() => undefined)
    try {
      await file?.close()
    } finally {
      // Also where it could not be opened: a copy may have been begun.
      await this.guard(rm(this.path, { force: true }))
    }
  }

  private async guard<T>(work: Promise<T>): Promise<T> {
    return work.catch((cause) => Promise.reject(failed(this.path, cause)))
  }
}

/**
 * Opens tiers on files of a folder, for `createEngine({ pages })`: one file a session, positional reads, nothing cached
 * but by the operating system.
 * They throw ParisError `out_of_memory` where the disk, a quota or the file is full, `internal` for whatever else goes wrong
 * with the file, such as a folder that is not there.
 */
export function filePages(folder: string): OpenPages {
  return (pageBytes) => new FilePages(pageBytes, folder)
}

interface Run {
  /** Rows [from, to) of the call, which lie side by side from byte `place` on. */
  readonly from: number
  readonly to: number
  readonly place: number
}

/** Neighbours in the file that are neighbours in the call are moved together. */
function runsOf(at: Float64Array, count: number, size: number): Run[] {
  const runs: Run[] = []
  for (let from = 0, to = 0; from < count; from = to) {
    for (to = from + 1; to < count && at[to] === at[to - 1] + size; ) to++
    runs.push({ from, to, place: at[from] })
  }
  return runs
}

async function eachAtOnce(runs: readonly Run[], work: (run: Run) => Promise<void>): Promise<void> {
  for (let i = 0; i < runs.length; i += AT_ONCE) await Promise.all(runs.slice(i, i + AT_ONCE).map(work))
}

async function readAll(file: FileHandle, size: number, place: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(size)
  for (let done = 0; done < size; ) {
    const { bytesRead } = await file.read(bytes, done, size - done, place + done)
    if (bytesRead === 0) throw new Error(`the file ends before byte ${place + size}`)
    done += bytesRead
  }
  return bytes
}

async function writeAll(file: FileHandle, bytes: Uint8Array, place: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.length - done, place + done)
    if (bytesWritten === 0) throw new Error(`nothing was written at byte ${place + done}`)
    done += bytesWritten
  }
}

/** What the operating system says where there is no room. */
const FULL: readonly unknown[] = ['ENOSPC', 'EDQUOT', 'EFBIG']

function failed(path: string, cause: unknown): ParisError {
  const full = FULL.includes((cause as { code?: unknown } | undefined)?.code)
  return new ParisError(full ? 'out_of_memory' : 'internal', {
    where: path,
    got: cause instanceof Error ? cause.message : String(cause),
    want: full ? 'room for the rows of every session' : 'a file that can be made, read and written',
    fix: `${full ? 'Free disk space' : 'Look after the disk'} or name another folder; the session still holds what it held.`,
    cause,
  })
}
