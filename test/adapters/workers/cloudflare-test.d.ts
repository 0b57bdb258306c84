/** What these tests use of the modules that the Workers pool gives. */
declare module 'cloudflare:workers' {
  export const env: import('../../../adapters/workers-object.ts').WorkerEnv
  export const exports: {
    readonly default: { fetch(request: Request | string, init?: RequestInit): Promise<Response> }
  }
}

declare module 'cloudflare:test' {
  type ObjectState = import('../../../adapters/workers-platform.ts').ObjectState
  /** Ends every object, as an eviction does; their storage stays. */
  export function abortAllDurableObjects(): Promise<void>
  export function runInDurableObject<O, R>(
    stub: unknown,
    body: (instance: O, state: ObjectState) => R | Promise<R>,
  ): Promise<R>
  /** @returns whether an alarm was set */
  export function runDurableObjectAlarm(stub: unknown): Promise<boolean>
  export function listDurableObjectIds(namespace: unknown): Promise<unknown[]>
}
