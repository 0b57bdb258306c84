import type { Limits } from './limits.ts'
import { Refusal, tooMany } from './problem.ts'

interface Share {
  sessions: number
  bytes: number
}

/** Counts what is under way and refuses what would go beyond the limits. */
export class Admission {
  private requests = 0
  private streams = 0
  private buffered = 0
  private readonly all: Share = { sessions: 0, bytes: 0 }
  private readonly tenants = new Map<string, Share>()
  private idle: (() => void)[] = []

  constructor(private readonly limits: Limits) {}

  /** Requests under way or waiting. */
  get inFlight(): number {
    return this.requests
  }

  /** Bytes of bodies held. */
  get bufferedBytes(): number {
    return this.buffered
  }

  /** Sessions and bytes reserved. */
  get reserved(): Readonly<Share> {
    return this.all
  }

  /** Counts a request while it runs. @throws ParisError `too_many` */
  async request<T>(task: () => Promise<T>): Promise<T> {
    if (this.requests >= this.limits.queue)
      throw tooMany('the server', `${this.requests} requests under way`, `at most ${this.limits.queue}`)
    this.requests++
    try {
      return await task()
    } finally {
      this.requests--
      if (this.requests === 0) for (const done of this.idle.splice(0)) done()
    }
  }

  /** When no request is under way. */
  async quiet(): Promise<void> {
    if (this.requests > 0) await new Promise<void>((resolve) => this.idle.push(resolve))
  }

  /** Counts a snapshot on its way until the function returned is called. @throws ParisError `too_many` */
  stream(): () => void {
    if (this.streams >= this.limits.streams)
      throw tooMany('snapshots', `${this.streams} under way`, `at most ${this.limits.streams}`, 5)
    this.streams++
    let open = true
    return () => {
      if (open) this.streams--
      open = false
    }
  }

  /** Bytes of one body: `add` counts them in, `release` all of them out. */
  hold(): { add: (bytes: number) => void; release: () => void } {
    let mine = 0
    return {
      add: (bytes) => {
        if (this.buffered + bytes > this.limits.buffered)
          throw tooMany('the server', `${this.buffered} bytes of bodies under way`, `at most ${this.limits.buffered}`)
        mine += bytes
        this.buffered += bytes
      },
      release: () => {
        this.buffered -= mine
        mine = 0
      },
    }
  }

  /**
   * Reserves one session of so many bytes.
   * @returns gives them back
   * @throws ParisError `too_many` for sessions, `out_of_memory` for bytes
   */
  reserve(tenant: string, bytes: number): () => void {
    const share = this.tenants.get(tenant) ?? { sessions: 0, bytes: 0 }
    const { limits, all } = this
    checkSessions('this tenant', share.sessions, limits.sessionsPerTenant)
    checkSessions('the server', all.sessions, limits.sessions)
    checkBytes('this tenant', share.bytes, bytes, limits.bytesPerTenant)
    checkBytes('the server', all.bytes, bytes, limits.bytes)
    this.tenants.set(tenant, share)
    add(share, 1, bytes)
    add(all, 1, bytes)
    let open = true
    return () => {
      if (!open) return
      open = false
      add(share, -1, -bytes)
      add(all, -1, -bytes)
      if (share.sessions === 0 && this.tenants.get(tenant) === share) this.tenants.delete(tenant)
    }
  }
}

function add(share: Share, sessions: number, bytes: number): void {
  share.sessions += sessions
  share.bytes += bytes
}

function checkSessions(where: string, open: number, limit: number): void {
  if (open >= limit) throw tooMany(where, `${open} open sessions`, `at most ${limit}`, 5)
}

function checkBytes(where: string, taken: number, bytes: number, limit: number): void {
  if (taken + bytes <= limit) return
  throw new Refusal(
    'out_of_memory',
    {
      where,
      got: `${bytes} bytes on top of ${taken}`,
      want: `at most ${limit} in all`,
      fix: 'Lower capacity, layers or heads, take a 16-bit store, or delete sessions that are not used.',
    },
    { retryAfter: 5 },
  )
}
