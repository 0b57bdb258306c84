import type { CallOptions } from '../calls.ts'
import type { SessionOptions } from '../config.ts'
import { type OpenedSession, RemoteSession } from './client-session.ts'
import { type ClientOptions, Transport } from './client-transport.ts'
import { SAFETENSORS } from './tensors.ts'

export { mergePartials } from '../attend/merge-partials.ts'
export { ParisError } from '../errors.ts'
export type { TensorInput } from '../input.ts'
export type { OpenedSession } from './client-session.ts'
export { RemoteSession } from './client-session.ts'
export { SessionSocket } from './client-socket.ts'
export type { ClientOptions } from './client-transport.ts'

/** A server of `pariskv/hono`, with the calls of an engine. */
export class ParisClient {
  private readonly transport: Transport

  constructor(options: ClientOptions) {
    this.transport = new Transport(options)
  }

  /**
   * Opens an empty session.
   * @param options as the SDK takes them; ttl: seconds that it may stay idle
   * @throws ParisError as `engine.createSession`; `too_many`, `out_of_memory` beyond the server's limits
   */
  async createSession(
    options: SessionOptions & { readonly ttl?: number },
    call: Pick<CallOptions, 'signal'> = {},
  ): Promise<RemoteSession> {
    const body = JSON.stringify(options)
    const answer = await this.transport.send('POST', '/v1/sessions', {
      body,
      type: 'application/json',
      once: true,
      ...call,
    })
    return new RemoteSession(this.transport, (await answer.json()) as OpenedSession)
  }

  /**
   * Opens a session from a snapshot. A stream can be sent only once, so only bytes are sent again after a failure.
   * @throws ParisError `snapshot_corrupt`, `too_many`, `too_large`, `out_of_memory`
   */
  async restore(
    snapshot: ReadableStream<Uint8Array> | Uint8Array<ArrayBuffer>,
    { ttl, signal }: { ttl?: number; signal?: AbortSignal } = {},
  ): Promise<RemoteSession> {
    const path = `/v1/sessions:restore${ttl === undefined ? '' : `?ttl=${ttl}`}`
    const whole = !(snapshot instanceof ReadableStream)
    const call = { body: snapshot, type: SAFETENSORS, signal, repeatable: whole, once: whole }
    const answer = await this.transport.send('POST', path, call)
    return new RemoteSession(this.transport, (await answer.json()) as OpenedSession)
  }

  /** A session that is open already, by its id. @throws ParisError `not_found`, `session_lost` */
  async session(id: string, call: Pick<CallOptions, 'signal'> = {}): Promise<RemoteSession> {
    const [session, info] = await Promise.all([
      this.transport.send('GET', `/v1/sessions/${encodeURIComponent(id)}`, call),
      this.info(call),
    ])
    const opened = (await session.json()) as OpenedSession
    return new RemoteSession(this.transport, { ...opened, limits: info.limits })
  }

  /** Backend, epoch and limits of the server. */
  async info(
    call: Pick<CallOptions, 'signal'> = {},
  ): Promise<{ state: string; epoch: string; backend: string | null; limits: Record<string, number> }> {
    return (await (await this.transport.send('GET', '/v1/info', call)).json()) as never
  }
}

/** A client of a server at `url`, e.g. `createClient({ url: 'https://host/kv', token })`. */
export function createClient(options: ClientOptions): ParisClient {
  return new ParisClient(options)
}
