import { joined } from '../sdk/http/body.ts'
import type { SessionRecord } from '../sdk/http/options.ts'
import { buildFrame } from '../sdk/http/tensors.ts'
import type { Dtype, TensorInput } from '../sdk/index.ts'
import type { ObjectStorage, SqlValue } from './workers-platform.ts'

/** A session as it is found in storage. */
export interface StoredSession {
  readonly id: string
  readonly record: SessionRecord
  /** When it was last used, in ms. */
  readonly used: number
}

/** How the opening of a session was answered, and what the request said. */
export interface StoredAnswer {
  readonly answer: string
  readonly print: string
}

/** What has happened to a session since it began. */
export type LogEntry =
  | { readonly kind: 'append'; readonly layer: number; readonly start: number; readonly frame: Uint8Array<ArrayBuffer> }
  | { readonly kind: 'truncate'; readonly length: number }

/** Bytes of one row at most: a row must stay below 2 MB. */
const ROW_BYTES = 2 ** 20

const NOTHING = new Uint8Array()

/**
 * One session in the storage of its Durable Object: a record, and rows in the order of what happened, which are only
 * added, until a truncation takes whole ones away. Writing is synchronous, and an answer leaves the object only when
 * everything written before it is safe.
 */
export class SessionLog {
  /** Whether the record is known to have a store. */
  private settled = false

  constructor(private readonly storage: ObjectStorage) {}

  /** The session that is stored, if there is one. Writes nothing. */
  stored(): StoredSession | undefined {
    const query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'session'"
    if (this.query(query).length === 0) return undefined
    const [row] = this.query<{ id: string; record: string; used: number }>('SELECT id, record, used FROM session')
    return row && { id: row.id, record: JSON.parse(row.record) as SessionRecord, used: row.used }
  }

  /** Makes the tables, before anything is written. */
  open(): void {
    this.query(
      'CREATE TABLE IF NOT EXISTS session (id TEXT NOT NULL, record TEXT NOT NULL, used INTEGER NOT NULL, answer TEXT, print TEXT)',
    )
    this.query(`CREATE TABLE IF NOT EXISTS rows (
      id INTEGER PRIMARY KEY, kind TEXT NOT NULL, layer INTEGER NOT NULL, start INTEGER NOT NULL,
      more INTEGER NOT NULL, bytes BLOB NOT NULL)`)
  }

  /** From here on there is a session. @param now ms */
  create(id: string, record: SessionRecord, now: number): void {
    this.open()
    this.query('INSERT INTO session (id, record, used) VALUES (?, ?, ?)', id, JSON.stringify(record), now)
  }

  /** Notes when the session was last used, in ms. */
  touch(now: number): void {
    this.query('UPDATE session SET used = ?', now)
  }

  /** What the opening of the session was answered with, and the print of that request: for a retry of it. */
  answer(): StoredAnswer | undefined {
    if (!this.stored()) return undefined
    const [{ answer, print }] = this.query<{ [name in keyof StoredAnswer]: string | null }>(
      'SELECT answer, print FROM session',
    )
    return answer === null ? undefined : { answer, print: print ?? '' }
  }

  /** Keeps that, where there is a session. */
  keepAnswer({ answer, print }: StoredAnswer): void {
    if (this.stored()) this.query('UPDATE session SET answer = ?, print = ?', answer, print)
  }

  /** Takes away whatever is stored. */
  async clear(): Promise<void> {
    this.settled = false
    await this.storage.deleteAll()
  }

  /** Keys and values [H, tokens, d] that a layer has got behind its first `offset` tokens. */
  append(layer: number, offset: number, keys: TensorInput, values: TensorInput): void {
    const frame = buildFrame([flat('keys', keys), flat('values', values)])
    this.storage.transactionSync(() => {
      // The first rows decide the store of a session that named none, and go on deciding when they are truncated.
      if (!this.settled) this.settleStore('data' in keys ? keys.dtype : 'f32')
      for (let from = 0; from < frame.length; from += ROW_BYTES)
        this.add('append', layer, offset, frame.subarray(from, from + ROW_BYTES), from + ROW_BYTES < frame.length)
    })
    this.settled = true
  }

  /** Takes rows beyond `length` away, and notes the length for those that reach beyond it in part. */
  truncate(length: number): void {
    this.storage.transactionSync(() => {
      this.query("DELETE FROM rows WHERE kind <> 'snapshot' AND start >= ?", length)
      this.add('truncate', 0, length, NOTHING, false)
    })
  }

  /** Stores a snapshot as what the session begins with; before the first append. */
  async begin(snapshot: ReadableStream<Uint8Array>): Promise<void> {
    this.open()
    // Of an attempt that ended in the middle.
    this.query('DELETE FROM rows')
    let held: Uint8Array[] = []
    let bytes = 0
    const flush = () => {
      const all = joined(held, bytes)
      for (let from = 0; from < all.length; from += ROW_BYTES)
        this.add('snapshot', 0, 0, all.subarray(from, from + ROW_BYTES), false)
      held = []
      bytes = 0
    }
    const reader = snapshot.getReader()
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      held.push(part.value)
      bytes += part.value.length
      if (bytes >= ROW_BYTES) flush()
    }
    flush()
  }

  /** What the session begins with, read as it is asked for; undefined where it began empty. */
  snapshot(): ReadableStream<Uint8Array> | undefined {
    let after = 0
    const next = () => {
      const query = "SELECT id, bytes FROM rows WHERE kind = 'snapshot' AND id > ? ORDER BY id LIMIT 1"
      return this.query<{ id: number; bytes: ArrayBuffer }>(query, after)[0]
    }
    if (!next()) return undefined
    return new ReadableStream<Uint8Array>({
      pull(controller) {
        const row = next()
        if (!row) return controller.close()
        after = row.id
        controller.enqueue(new Uint8Array(row.bytes))
      },
    })
  }

  /** Everything since, in order; read as it is asked for. */
  *entries(): Generator<LogEntry> {
    let parts: Uint8Array[] = []
    let bytes = 0
    const query = "SELECT kind, layer, start, more, bytes FROM rows WHERE kind <> 'snapshot' ORDER BY id"
    for (const row of this.storage.sql.exec<Row>(query)) {
      if (row.kind === 'truncate') {
        yield { kind: 'truncate', length: row.start }
        continue
      }
      parts.push(new Uint8Array(row.bytes))
      bytes += row.bytes.byteLength
      if (row.more) continue
      yield { kind: 'append', layer: row.layer, start: row.start, frame: joined(parts, bytes) }
      parts = []
      bytes = 0
    }
  }

  private settleStore(store: Dtype): void {
    const stored = this.stored()
    if (!stored || stored.record.options.store) return
    const record = { ...stored.record, options: { ...stored.record.options, store } }
    this.query('UPDATE session SET record = ?', JSON.stringify(record))
  }

  private add(kind: string, layer: number, start: number, bytes: Uint8Array, more: boolean): void {
    const query = 'INSERT INTO rows (kind, layer, start, more, bytes) VALUES (?, ?, ?, ?, ?)'
    this.query(query, kind, layer, start, more ? 1 : 0, bytes)
  }

  private query<T extends Record<string, SqlValue>>(text: string, ...bindings: (SqlValue | Uint8Array)[]): T[] {
    return this.storage.sql.exec<T>(text, ...bindings).toArray()
  }
}

interface Row extends Record<string, SqlValue> {
  kind: string
  layer: number
  start: number
  more: number
  bytes: ArrayBuffer
}

function flat(name: string, data: TensorInput) {
  const { length } = 'data' in data ? data.data : data
  return { name, shape: [length], data }
}
