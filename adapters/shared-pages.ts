import { readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { MemoryPages, memoryPages, type PageSource } from '../sdk/cache/pages.ts'
import { describe, ParisError } from '../sdk/errors.ts'
import type { OpenPages } from '../sdk/index.ts'
import { GatherThreads, PRESSURE } from './gather-threads.ts'

/** Options of `sharedPages`. */
export interface SharedPagesOptions {
  /**
   * Threads that gather rows beside the calling one, 0 to 64. By default one less than the cores that the process may use,
   * 7 at most, and none where it may use two.
   */
  readonly threads?: number
  /** Rows of a gather from which on threads take part. Default 128: fewer are copied before a thread has noticed. */
  readonly leastRows?: number
}

/** More add nothing: eight wait for as much memory at once as there is to wait for. */
const MOST_HELPERS = 7

/**
 * Opens tiers in memory that several threads see, which gather the rows of a step together, for `createEngine({ pages })`.
 * The threads are those of all tiers opened by the returned function: started at the first gather that is large enough,
 * ended with the last tier, and no reason for the process to stay. Where they fail the calling thread gathers alone and a
 * warning is emitted.
 * @throws ParisError `bad_config`
 */
export function sharedPages(options: SharedPagesOptions = {}): OpenPages {
  const { threads = helpers(usableCores()), leastRows = 128 } = options ?? {}
  checkWhole('threads', threads, 64)
  checkWhole('leastRows', leastRows, Number.MAX_SAFE_INTEGER)
  if (threads === 0) return memoryPages
  const memory = new SharedMemory(threads, leastRows)
  return (pageBytes) => new SharedPages(pageBytes, memory)
}

/** Pages that threads see. A page of several forks is one for the threads too. */
export class SharedPages extends MemoryPages {
  private disposed = false

  constructor(
    pageBytes: number,
    private readonly memory: SharedMemory,
  ) {
    super(pageBytes, Number.POSITIVE_INFINITY, memory)
    memory.enter()
  }

  /** Blocks of rows that threads have copied since they were started, for all tiers. */
  get helped(): number {
    return this.memory.threads?.helped ?? 0
  }

  room(bytes: number): Uint8Array {
    try {
      return this.memory.room(bytes)
    } catch (cause) {
      throw this.full(bytes, cause)
    }
  }

  /** A promise only where threads failed. */
  override gather(
    at: Float64Array,
    count: number,
    row: number,
    keys: Uint8Array,
    values: Uint8Array,
  ): void | Promise<void> {
    const threads = this.memory.threadsFor(count, row, keys, values)
    if (!threads) return super.gather(at, count, row, keys, values)
    const { pages, pageBytes } = this
    const rows = threads.rows(count)
    for (let i = 0; i < count; i++) {
      const page = Math.floor(at[i] / pageBytes)
      const { id, bytes } = pages[page] as NonNullable<(typeof pages)[number]>
      threads.know(id, bytes.buffer)
      rows[2 * i] = id
      rows[2 * i + 1] = at[i] - page * pageBytes
    }
    const job = { count, row, ...this.memory.output(threads, keys, values) }
    if (threads.run(job, (from, to) => this.gatherBlock(at, from, to, row, keys, values))) return
    return this.memory.fail(threads, 'they did not end in time').then(() => super.gather(at, count, row, keys, values))
  }

  override fork(): SharedPages {
    return this.shareWith(new SharedPages(this.pageBytes, this.memory))
  }

  override dispose(): void | Promise<void> {
    super.dispose()
    if (this.disposed) return
    this.disposed = true
    return this.memory.leave()
  }
}

/** What all tiers of one `sharedPages` have in common: numbers for their buffers, and the threads. */
class SharedMemory implements PageSource {
  threads: GatherThreads | undefined
  /** Until the last tier is gone. */
  private failed = false
  private warned = false
  private tiers = 0
  /** Bytes of each buffer by its number, 0 where the number is free. */
  private readonly sizes: number[] = []
  private readonly free: number[] = []
  private freed = 0
  private readonly rooms = new WeakMap<ArrayBufferLike, number>()
  private readonly unreachable = new FinalizationRegistry<number>((id) => this.close(id))

  constructor(
    private readonly helpers: number,
    private readonly leastRows: number,
  ) {}

  open(bytes: number) {
    const buffer = new SharedArrayBuffer(bytes)
    const id = this.free.pop() ?? this.sizes.length
    this.sizes[id] = bytes
    return { buffer, id }
  }

  close(id: number): void {
    this.threads?.forget(id)
    this.freed += this.sizes[id]
    this.sizes[id] = 0
    this.free.push(id)
    if (this.freed < PRESSURE) return
    this.freed = 0
    try {
      new ArrayBuffer(PRESSURE)
    } catch {
      // No room for that is pressure as well.
    }
  }

  room(bytes: number): Uint8Array {
    const { buffer, id } = this.open(bytes)
    this.rooms.set(buffer, id)
    this.unreachable.register(buffer, id)
    return new Uint8Array(buffer)
  }

  enter(): void {
    this.tiers++
  }

  async leave(): Promise<void> {
    this.tiers--
    if (this.tiers > 0) return
    const { threads } = this
    this.threads = undefined
    this.failed = false
    await threads?.stop()
  }

  /** The threads, where they are of use for a gather into these arrays. */
  threadsFor(count: number, row: number, keys: Uint8Array, values: Uint8Array): GatherThreads | undefined {
    if (this.failed || count < this.leastRows || Math.min(keys.length, values.length) < count * row) return undefined
    if (!this.rooms.has(keys.buffer) || !this.rooms.has(values.buffer)) return undefined
    this.threads ??= new GatherThreads(this.helpers, (cause) => this.warn(cause))
    return this.threads.ready ? this.threads : undefined
  }

  /** Makes two arrays of `room` known to the threads, as a job names them. */
  output(threads: GatherThreads, keys: Uint8Array, values: Uint8Array) {
    const number = ({ buffer }: Uint8Array) => {
      const id = this.rooms.get(buffer) as number
      threads.know(id, buffer)
      return id
    }
    return { keys: number(keys), keysAt: keys.byteOffset, values: number(values), valuesAt: values.byteOffset }
  }

  /** Does without the threads from now on. Done when none of them writes any more. */
  async fail(threads: GatherThreads, cause: unknown): Promise<void> {
    this.warn(cause)
    await threads.stop()
  }

  private warn(cause: unknown): void {
    this.failed = true
    if (this.warned) return
    this.warned = true
    const reason = cause instanceof Error ? cause.message : String(cause)
    process.emitWarning(`threads that gather rows failed (${reason}): the calling thread does it alone`, {
      code: 'PARISKV_GATHER_THREADS',
      detail: 'Nothing is lost but time. sharedPages({ threads: 0 }) does without them from the start.',
    })
  }
}

/** Cores that this process may keep busy: those it may run on, or what its control group is given of them. */
function usableCores(): number {
  const cores = availableParallelism()
  try {
    const [quota, period] = readFileSync('/sys/fs/cgroup/cpu.max', 'utf8').split(' ').map(Number)
    return quota > 0 ? Math.min(cores, Math.ceil(quota / period)) : cores
  } catch {
    return cores
  }
}

function helpers(cores: number): number {
  return cores > 2 ? Math.min(MOST_HELPERS, cores - 1) : 0
}

function checkWhole(name: keyof SharedPagesOptions, value: unknown, most: number): void {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 && value <= most) return
  throw new ParisError('bad_config', {
    where: `sharedPages: ${name}`,
    got: describe(value),
    want: `a whole number, 0 to ${most}`,
    fix: 'Leave it out for the default.',
  })
}
