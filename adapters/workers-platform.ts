/** What these adapters use of the Workers platform, so that their types need no package of types. */

/** Rows of a query. */
export interface SqlCursor<T> extends Iterable<T> {
  toArray(): T[]
}

/** What SQLite gives. */
export type SqlValue = ArrayBuffer | string | number | null

/** The SQLite database of one Durable Object. */
export interface ObjectStorage {
  readonly sql: {
    exec<T extends Record<string, SqlValue>>(query: string, ...bindings: (SqlValue | Uint8Array)[]): SqlCursor<T>
    readonly databaseSize: number
  }
  transactionSync<T>(body: () => T): T
  setAlarm(time: number): Promise<void>
  deleteAlarm(): Promise<void>
  deleteAll(): Promise<void>
}

/** What a Durable Object is made with. */
export interface ObjectState {
  readonly id: { toString(): string }
  readonly storage: ObjectStorage
  blockConcurrencyWhile<T>(body: () => Promise<T>): Promise<T>
}

/** The objects of one class. */
export interface ObjectNamespace {
  idFromName(name: string): unknown
  get(id: never): { fetch(request: Request): Promise<Response> }
}
