/** What the handler takes. Bytes, counts, and times in the unit named; refused beyond them at once. */
export interface Limits {
  /** Bytes of one body or WebSocket message, by default 32 MiB. 413 */
  readonly body: number
  /** Bytes of bodies held at once, by default 256 MiB. 429 */
  readonly buffered: number
  /** Bytes of one snapshot handed in, by default 16 GiB. 413 */
  readonly snapshot: number
  /** Snapshots read and written at once, by default 4. 429 */
  readonly streams: number
  /** Open sessions in all, by default 1024. 429 */
  readonly sessions: number
  /** Open sessions of one tenant, by default 256. 429 */
  readonly sessionsPerTenant: number
  /** Bytes of all sessions as `engine.estimate` counts them, by default 64 GiB. 507 */
  readonly bytes: number
  /** Bytes of one tenant's sessions, by default 64 GiB. 507 */
  readonly bytesPerTenant: number
  /** Requests under way or waiting in all, by default 512. 429 */
  readonly queue: number
  /** Requests under way or waiting on one session, by default 128. 429 */
  readonly queuePerSession: number
  /** Milliseconds a request may take, by default 30,000. 503 */
  readonly deadline: number
  /** Milliseconds a snapshot may take to be read or written, by default 600,000. 503 */
  readonly streamDeadline: number
  /** Seconds that a session may stay idle unless it asks otherwise, by default 3,600. */
  readonly ttl: number
  /** The most that it may ask for, by default 86,400. 400 */
  readonly maxTtl: number
  /** Answers kept for Idempotency-Keys: their number on one session, by default 64. */
  readonly replays: number
  /** Bytes of those answers on one session, by default 4 MiB; larger answers are not kept. */
  readonly replayBytes: number
  /** Bytes of the answers kept on all sessions, by default 256 MiB; the oldest go first. */
  readonly replayBytesInAll: number
}

export const DEFAULT_LIMITS: Limits = {
  body: 32 * 2 ** 20,
  buffered: 256 * 2 ** 20,
  snapshot: 16 * 2 ** 30,
  streams: 4,
  sessions: 1024,
  sessionsPerTenant: 256,
  bytes: 64 * 2 ** 30,
  bytesPerTenant: 64 * 2 ** 30,
  queue: 512,
  queuePerSession: 128,
  deadline: 30_000,
  streamDeadline: 600_000,
  ttl: 3600,
  maxTtl: 86_400,
  replays: 64,
  replayBytes: 4 * 2 ** 20,
  replayBytesInAll: 256 * 2 ** 20,
}
