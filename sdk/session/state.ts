import type { Backend } from '../backend.ts'
import { Cache } from '../cache/cache.ts'
import { cacheBytes } from '../cache/cache-bytes.ts'
import { offloadPlan } from '../cache/offload-plan.ts'
import type { OpenPages, PageTier } from '../cache/pages.ts'
import { CallQueue } from '../calls.ts'
import type { SessionConfig } from '../config.ts'
import type { Dtype } from '../dtype.ts'
import { describe, ParisError } from '../errors.ts'
import { RecallAudit } from '../retrieve/audit.ts'
import { Scratch } from '../retrieve/scratch.ts'
import { type MemoryUse, stepPlan, withTotal } from './memory.ts'
import { isOffloaded } from './placement.ts'

/** Everything one session holds. Its calls go through `queue`, in order. */
export class SessionState {
  readonly queue = new CallQueue()
  readonly scratch: Scratch
  readonly audit: RecallAudit
  /** Snapshots under way: a truncation below what one has captured makes it stale. */
  readonly snapshots = new Set<{ readonly longest: number; stale: boolean }>()
  readonly calls = { append: 0, prefill: 0, attend: 0, retrieve: 0 }
  /** Lengths before the append under way, of the layers that it touches. */
  readonly underway = new Map<number, number>()
  /** The latest token recorded for each layer that did not count yet; one recorded before it may lie under it. */
  readonly arriving = new Map<number, object>()
  /** What the device counted of values that it stored as 0: whether that may have grown since it was read, and what was told. */
  readonly refused = { unread: false, told: 0 }
  cache: Cache | undefined
  private closing: Promise<void> | undefined

  /** @param pages opens the host's pages of rows, where they are offloaded */
  constructor(
    readonly backend: Backend,
    readonly config: SessionConfig,
    readonly pages: OpenPages,
  ) {
    this.scratch = new Scratch(backend)
    this.audit = new RecallAudit(config.policy.auditEvery)
  }

  /** The cache, opened at first use. @param given the dtype of the first rows, unless the configuration names a store */
  async open(given: Dtype): Promise<Cache> {
    if (this.cache) return this.cache
    const store = this.config.store ?? given
    const taken = this.backend.allocated()
    const tier = isOffloaded(this.backend, this.config, store, taken) ? this.openTier(store) : undefined
    return this.take(await Cache.open(this.backend, this.config, { store, tier }))
  }

  private openTier(store: Dtype): PageTier {
    return this.pages(offloadPlan(this.config, store).pageBytes)
  }

  /**
   * A copy of this session's cache for a new, empty session, whose rows may live elsewhere. Inside the queue.
   * @param pages what becomes of the host's: copied, or moved where both have some; a failure leaves them here
   */
  async forkTo(copy: SessionState, pages: 'copy' | 'move' = 'copy'): Promise<void> {
    const { cache } = this
    if (!cache) return
    const { store, offload } = cache
    const offloaded = isOffloaded(copy.backend, copy.config, store, copy.backend.allocated())
    const lent = pages === 'move' && offloaded && offload !== undefined
    const tier = lent ? offload.tier : offloaded ? await (offload?.tier.fork() ?? copy.openTier(store)) : undefined
    const taken = await copy.take(await cache.fork(copy.config, { store, tier, lent }, copy.backend))
    taken.keepTier(cache)
  }

  /** Makes a cache this session's own and reserves the scratch of its steps. */
  async take(cache: Cache): Promise<Cache> {
    try {
      await this.scratch.reserve(stepPlan(this.backend, this.config, cache.store, cache.offload !== undefined))
    } catch (error) {
      await cache.dispose()
      throw error
    }
    this.cache = cache
    return cache
  }

  /** Gives back what `open` took, for a first append that failed. */
  async unopen(): Promise<void> {
    const { cache } = this
    this.cache = undefined
    try {
      await cache?.dispose()
    } finally {
      this.scratch.dispose()
    }
  }

  get disposed(): boolean {
    return this.closing !== undefined
  }

  /** Tokens of a layer as of the calls that have completed. */
  settledLength(layer: number): number {
    return this.underway.get(layer) ?? this.length(layer)
  }

  length(layer: number): number {
    return this.cache?.layer(layer).length ?? 0
  }

  lengths(): number[] {
    return Array.from({ length: this.config.shape.layers }, (_, l) => this.length(l))
  }

  memory(): MemoryUse {
    const { cache } = this
    const scratch = this.scratch.bytes()
    if (!cache) return withTotal({ rows: 0, summary: 0, scratch })
    const { offload, store } = cache
    const held = cacheBytes(this.config, this.backend.layout, store, offload !== undefined)
    return withTotal({ ...held, scratch, ...(offload ? { pages: offload.tier.bytes() } : undefined) })
  }

  /** Runs a task in call order. @throws ParisError `disposed`, `device_lost` */
  run<T>(where: string, task: () => Promise<T>): Promise<T> {
    if (this.disposed) return Promise.reject(disposedError(where))
    return this.queue.run(async () => {
      this.backend.check?.()
      return task()
    })
  }

  /** @throws ParisError `bad_layer` */
  checkLayer(layer: number, where: string): void {
    const { layers } = this.config.shape
    if (Number.isInteger(layer) && layer >= 0 && layer < layers) return
    throw new ParisError('bad_layer', {
      where: `${where}(layer)`,
      got: describe(layer),
      want: `a whole number from 0 to ${layers - 1}`,
      fix: 'Layers count from 0.',
    })
  }

  async dispose(): Promise<void> {
    this.closing ??= this.queue.run(() => this.close())
    return this.closing
  }

  /** Gives everything back. On a lost device freeing fails; its memory has gone with it. */
  async close(): Promise<void> {
    try {
      await this.unopen()
    } catch (error) {
      if (!(error instanceof ParisError && error.code === 'device_lost')) throw error
    }
  }
}

export function disposedError(where: string): ParisError {
  return new ParisError('disposed', {
    where,
    got: 'a disposed session or engine',
    want: 'an open one',
    fix: 'Open a new session; dispose only after the last call.',
  })
}
