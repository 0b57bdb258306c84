import { throwIfAborted } from './errors.ts'

/** How far a long call is. */
export interface Progress {
  readonly done: number
  readonly total: number
  readonly unit: 'tokens' | 'bytes'
}

/** Taken by every call that can run long. */
export interface CallOptions {
  /** Fired before the start: nothing changes. Later: the call completes or is rolled back. */
  readonly signal?: AbortSignal
  readonly onProgress?: (progress: Progress) => void
}

/** Reports progress and gives the event loop a turn now and then, so that timers, aborts and drawing go on. */
export class Pace {
  private last = Date.now()

  constructor(
    private readonly where: string,
    private readonly total: number,
    private readonly unit: Progress['unit'],
    private readonly options: CallOptions = {},
  ) {
    throwIfAborted(options.signal, where)
  }

  /** @throws ParisError `aborted` */
  async step(done: number): Promise<void> {
    this.options.onProgress?.({ done, total: this.total, unit: this.unit })
    if (Date.now() - this.last > 15) {
      await new Promise((resolve) => setTimeout(resolve))
      this.last = Date.now()
    }
    if (done < this.total) throwIfAborted(this.options.signal, this.where)
  }
}

/** Runs tasks one after the other, in the order of `run`. */
export class CallQueue {
  private tail: Promise<unknown> = Promise.resolve()
  private pending = 0

  /** Whether a task is under way or waits for its turn. */
  get busy(): boolean {
    return this.pending > 0
  }

  run<T>(task: () => Promise<T>): Promise<T> {
    return CallQueue.runAll([this], task)
  }

  /** Runs one task when every queue has reached it; each queue waits for its end. */
  static runAll<T>(queues: Iterable<CallQueue>, task: () => Promise<T>): Promise<T> {
    const distinct = [...new Set(queues)]
    const result = Promise.all(distinct.map((queue) => queue.tail))
      .then(task)
      .finally(() => {
        for (const queue of distinct) queue.pending--
      })
    for (const queue of distinct) {
      queue.pending++
      queue.tail = result.catch(() => {})
    }
    return result
  }
}
