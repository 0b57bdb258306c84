import { Worker } from 'node:worker_threads'

/** A gather as the threads see it. Buffers by number, places in bytes. */
export interface GatherJob {
  readonly count: number
  readonly row: number
  readonly keys: number
  readonly keysAt: number
  readonly values: number
  readonly valuesAt: number
}

/** Rows that a thread takes at a time. */
const BLOCK = 32
/** How long a thread looks for the next job before it sleeps, in ms: a decode step comes sooner. */
const AWAKE = 2
/** How long the caller waits for the last rows of the others, in ms. */
const PATIENCE = 100
/**
 * Bytes of shared memory given back after which the garbage collector is told: it does not count those, and would not run
 * for them. It counts a plain buffer of as many, and one that nobody touches costs nothing.
 */
export const PRESSURE = 2 ** 26

/** Counters that all threads see, as Int32 words, each on a pair of cache lines of its own. */
const WORD = 32
/** 1 while blocks of a job may be taken. */
const OPEN = 0
/** The next block. */
const NEXT = WORD
/** Threads that may be at work on the job, or read mail. The job stays as it is until there is none. */
const ACTIVE = 2 * WORD
/** Counts jobs and mail: what threads wait for. */
const SIGNAL = 3 * WORD
/** Counts mail alone. */
const MAIL = 4 * WORD
const SLEEPERS = 5 * WORD
const READY = 6 * WORD
/** Blocks that threads have copied. */
const HELPED = 7 * WORD
/** What the lines asked for held, so that asking is not optimized away. */
const TOUCHED = 8 * WORD
/** The job, as Float64 words. */
const JOB = 9 * WORD
const BYTES = 4 * 10 * WORD

/** A string, so that a bundler need not know of it. The thread never returns to its event loop. */
const CODE = `'use strict'
const { parentPort, receiveMessageOnPort, workerData } = require('node:worker_threads')
const words = new Int32Array(workerData.control)
const job = new Float64Array(workerData.control, 4 * ${JOB}, 6)
const buffers = []
let list = new Uint32Array(0)
let mail = 0
let freed = 0

function readMail() {
  const now = Atomics.load(words, ${MAIL})
  if (now === mail) return
  mail = now
  for (let got; (got = receiveMessageOnPort(parentPort)); ) {
    for (const [id, buffer] of got.message.buffers) {
      if (!buffer) freed += buffers[id].length
      buffers[id] = buffer && new Uint8Array(buffer)
    }
    if (got.message.list) list = new Uint32Array(got.message.list)
  }
}

function copyBlocks() {
  const [count, row, keysId, keysAt, valuesId, valuesAt] = job
  const keys = buffers[keysId]
  const values = buffers[valuesId]
  const blocks = Math.ceil(count / ${BLOCK})
  let done = 0
  let sum = 0
  for (let block; (block = Atomics.add(words, ${NEXT}, 1)) < blocks; done++) {
    const from = block * ${BLOCK}
    const to = Math.min(count, from + ${BLOCK})
    for (let i = from; i < to; i++) {
      const bytes = buffers[list[2 * i]]
      const last = list[2 * i + 1] + 2 * row - 1
      for (let line = list[2 * i + 1]; line < last; line += 64) sum += bytes[line]
      sum += bytes[last]
    }
    for (let i = from; i < to; i++) {
      const bytes = buffers[list[2 * i]]
      const start = list[2 * i + 1]
      keys.set(bytes.subarray(start, start + row), keysAt + i * row)
      values.set(bytes.subarray(start + row, start + 2 * row), valuesAt + i * row)
    }
  }
  Atomics.store(words, ${TOUCHED}, sum)
  Atomics.add(words, ${HELPED}, done)
}

/** Until there is another signal than that one. */
function rest(seen) {
  const until = performance.now() + ${AWAKE}
  for (let i = 0; Atomics.load(words, ${SIGNAL}) === seen; i++) {
    if (i % 64 !== 63 || performance.now() < until) continue
    Atomics.add(words, ${SLEEPERS}, 1)
    Atomics.wait(words, ${SIGNAL}, seen)
    Atomics.sub(words, ${SLEEPERS}, 1)
  }
}

Atomics.add(words, ${READY}, 1)
for (let seen = 0; ; ) {
  rest(seen)
  seen = Atomics.load(words, ${SIGNAL})
  Atomics.add(words, ${ACTIVE}, 1)
  // In this order: the mail of a job that is open has been sent.
  const open = Atomics.load(words, ${OPEN})
  readMail()
  if (open) copyBlocks()
  Atomics.sub(words, ${ACTIVE}, 1)
  if (freed < ${PRESSURE}) continue
  freed = 0
  try {
    new ArrayBuffer(${PRESSURE})
  } catch {}
}
`

/** Threads that copy rows between shared buffers. They neither keep the process nor outlast it. */
export class GatherThreads {
  private readonly words = new Int32Array(new SharedArrayBuffer(BYTES))
  private readonly job = new Float64Array(this.words.buffer, 4 * JOB, 6)
  private readonly workers: Worker[] = []
  /** By number: whether the threads have the buffer. */
  private readonly known: boolean[] = []
  private post: [id: number, buffer: ArrayBufferLike | undefined][] = []
  private list: Uint32Array = new Uint32Array(0)
  private listSent = true
  private stopped: Promise<unknown> | undefined

  /** @param onDeath called once where threads end by themselves, or cannot be made; the others have been stopped then */
  constructor(
    count: number,
    private readonly onDeath: (cause: unknown) => void,
  ) {
    try {
      while (this.workers.length < count) this.workers.push(this.start())
    } catch (cause) {
      this.die(cause)
    }
  }

  /** Whether any is there. */
  get ready(): boolean {
    return this.stopped === undefined && Atomics.load(this.words, READY) > 0
  }

  /** Blocks that threads have copied. */
  get helped(): number {
    return Atomics.load(this.words, HELPED)
  }

  /** Where the caller writes the rows of its next job: the number of each row's buffer, and its place there in bytes. */
  rows(count: number): Uint32Array {
    if (this.list.length >= 2 * count) return this.list
    this.list = new Uint32Array(new SharedArrayBuffer(16 * count))
    this.listSent = false
    return this.list
  }

  /** Makes a buffer known for the next job. */
  know(id: number, buffer: ArrayBufferLike): void {
    if (this.known[id]) return
    this.known[id] = true
    this.post.push([id, buffer])
  }

  /** Lets go of a buffer; its number may be another's next. */
  forget(id: number): void {
    if (!this.known[id] || this.stopped) return
    this.known[id] = false
    // Once for all that is let go of together. Asleep the threads would hold it.
    if (this.post.push([id, undefined]) > 1) return
    queueMicrotask(() => {
      if (this.sendMail()) this.signal()
    })
  }

  /**
   * Does a job, together with the caller. Its rows are in `rows`, its buffers known.
   * @param own copies rows [from, to) on the calling thread
   * @returns false where threads did not come to an end: they may still write, until `stop` is done
   */
  run(job: GatherJob, own: (from: number, to: number) => void): boolean {
    const { words } = this
    const { count } = job
    this.sendMail()
    this.job.set([count, job.row, job.keys, job.keysAt, job.values, job.valuesAt])
    Atomics.store(words, NEXT, 0)
    Atomics.store(words, OPEN, 1)
    this.signal()
    let ended = false
    try {
      for (let from = this.next(); from < count; from = this.next()) own(from, Math.min(count, from + BLOCK))
    } finally {
      Atomics.store(words, OPEN, 0)
      ended = this.wait()
    }
    return ended
  }

  /** Ends the threads; none of them writes any more when it is done. */
  async stop(): Promise<void> {
    this.stopped ??= Promise.all(this.workers.map((worker) => worker.terminate()))
    await this.stopped
  }

  private start(): Worker {
    const worker = new Worker(CODE, {
      eval: true,
      name: 'pariskv gather',
      workerData: { control: this.words.buffer },
      execArgv: [],
    })
    worker.unref()
    worker.on('error', (cause) => this.die(cause))
    worker.on('exit', (code) => this.die(new Error(`a thread ended with ${code}`)))
    return worker
  }

  private die(cause: unknown): void {
    if (this.stopped) return
    void this.stop()
    this.onDeath(cause)
  }

  /** The first row of the next block. */
  private next(): number {
    return Atomics.add(this.words, NEXT, 1) * BLOCK
  }

  /** @returns whether there was any */
  private sendMail(): boolean {
    if (this.stopped || (this.post.length === 0 && this.listSent)) return false
    const mail = { buffers: this.post, list: this.listSent ? undefined : this.list.buffer }
    this.post = []
    this.listSent = true
    for (const worker of this.workers) worker.postMessage(mail)
    Atomics.add(this.words, MAIL, 1)
    return true
  }

  private signal(): void {
    Atomics.add(this.words, SIGNAL, 1)
    if (Atomics.load(this.words, SLEEPERS) > 0) Atomics.notify(this.words, SIGNAL)
  }

  /** Until no thread is at work. */
  private wait(): boolean {
    let waited = 0
    let last = performance.now()
    for (let i = 1; Atomics.load(this.words, ACTIVE) !== 0; i++) {
      if (i % 64 !== 0) continue
      const now = performance.now()
      // No more than this at once: a process that was stopped as a whole has not waited for its threads.
      waited += Math.min(1, now - last)
      last = now
      if (waited > PATIENCE) return false
    }
    return true
  }
}
