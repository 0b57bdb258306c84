import { attentionPlan } from '../attend/attention.ts'
import type { Backend } from '../backend.ts'
import { Cache, cacheBytes } from '../cache/cache.ts'
import { CallQueue } from '../calls.ts'
import type { SessionConfig } from '../config.ts'
import type { Dtype } from '../dtype.ts'
import { describe, ParisError } from '../errors.ts'
import { auditPlan, RecallAudit } from '../retrieve/audit.ts'
import { retrieverPlan } from '../retrieve/retriever.ts'
import { Scratch } from '../retrieve/scratch.ts'

/** Bytes by purpose. */
export interface MemoryUse {
  /** Full keys and values. */
  readonly rows: number
  /** Codes of the retrieval zone. */
  readonly summary: number
  /** Working buffers. */
  readonly scratch: number
  readonly total: number
}

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
  /** What the device counted of values that it stored as 0: whether that may have grown since it was read, and what was told. */
  readonly refused = { unread: false, told: 0 }
  cache: Cache | undefined
  private closing: Promise<void> | undefined

  constructor(
    readonly backend: Backend,
    readonly config: SessionConfig,
  ) {
    this.scratch = new Scratch(backend)
    this.audit = new RecallAudit(config.policy.auditEvery)
  }

  /** The cache, opened at first use. @param given the dtype of the first rows, unless the configuration names a store */
  async open(given: Dtype): Promise<Cache> {
    if (this.cache) return this.cache
    return this.take(await Cache.open(this.backend, this.config, this.config.store ?? given))
  }

  /** Makes a cache this session's own and reserves the scratch of its steps. */
  async take(cache: Cache): Promise<Cache> {
    try {
      await this.scratch.reserve(stepPlan(this.backend, this.config))
    } catch (error) {
      cache.dispose()
      throw error
    }
    this.cache = cache
    return cache
  }

  /** Gives back what `open` took, for a first append that failed. */
  unopen(): void {
    this.cache?.dispose()
    this.cache = undefined
    this.scratch.dispose()
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
    const store = this.cache?.store
    const { rows, summary } = store ? cacheBytes(this.config, this.backend.layout, store) : { rows: 0, summary: 0 }
    const scratch = this.scratch.bytes()
    return { rows, summary, scratch, total: rows + summary + scratch }
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
    this.closing ??= this.queue.run(async () => this.unopen())
    return this.closing
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

/** Bytes of the scratch that decode steps need, at any length up to the capacity. */
function stepPlan(backend: Backend, config: SessionConfig): Record<string, number> {
  const recording = backend.recorder ? { refused: 4 } : undefined
  return { ...retrieverPlan(config), ...attentionPlan(backend, config), ...auditPlan(config), ...recording }
}

/** What opening a session would take, by purpose. */
export function estimateMemory(backend: Backend, config: SessionConfig): MemoryUse {
  const { rows, summary } = cacheBytes(config, backend.layout, config.store ?? 'f32')
  const scratch = Object.values(stepPlan(backend, config)).reduce((sum, bytes) => sum + Math.max(4, bytes), 0)
  return { rows, summary, scratch, total: rows + summary + scratch }
}
