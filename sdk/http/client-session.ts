import { type CallOptions, CallQueue } from '../calls.ts'
import type { SessionOptions } from '../config.ts'
import { throwIfAborted } from '../errors.ts'
import type { Tensor, TensorInput } from '../input.ts'
import type { KeysValues } from '../session/append.ts'
import type { AttendResult, RetrieveResult } from '../session/steps.ts'
import { SessionSocket } from './client-socket.ts'
import {
  type AnswerFrame,
  attendResult,
  checkHeads,
  checkRows,
  floats,
  frameOf,
  part,
  single,
  tokenBytes,
  whole,
} from './client-tensors.ts'
import type { Transport } from './client-transport.ts'
import { buildFrame, type OutTensor, SAFETENSORS } from './tensors.ts'

type Signal = Pick<CallOptions, 'signal'>

/** What a server says of a session that it opened. */
export interface OpenedSession {
  readonly id: string
  /** Changes when the server opens another engine: sessions of an earlier one are lost. */
  readonly epoch: string
  readonly ttl: number
  readonly backend: string
  readonly limits: Readonly<Record<string, number>>
  readonly lengths: number[]
  readonly config: SessionOptions
}

const CHUNK = 8 * 2 ** 20

/** A session on a server, with the calls of the SDK's. They run in call order. */
export class RemoteSession {
  readonly id: string
  readonly config: SessionOptions
  private readonly queue = new CallQueue()
  private readonly lengths: number[]
  private readonly chunk: number
  /** Tokens of a prefill whose answer the server keeps for a retry. */
  private readonly mostPrefilled: number

  /** @internal */
  constructor(
    private readonly transport: Transport,
    readonly opened: OpenedSession,
  ) {
    this.id = opened.id
    this.config = opened.config
    this.lengths = [...opened.lengths]
    this.chunk = Math.min(transport.options.chunkBytes ?? CHUNK, (opened.limits.body ?? CHUNK) - 4096)
    const answered = 4 * opened.config.queryHeads * (opened.config.headDim + 1)
    this.mostPrefilled = Math.floor(((opened.limits.replayBytes ?? CHUNK) - 4096) / answered)
  }

  /** Tokens of a layer, as of the calls that were answered. */
  length(layer = 0): number {
    return this.lengths[layer] ?? 0
  }

  /**
   * Appends tokens to one layer, in as many requests as their bytes ask for. Each is kept when it is answered: after an
   * abort or an error `length` tells how many.
   * @param input keys and values [H, tokens, d]
   * @throws ParisError as `session.append` does, and what the transport does
   */
  async append(layer: number, input: KeysValues, options: CallOptions = {}): Promise<void> {
    const { keys, values } = checkRows(this.config, input, 'session.append')
    await this.inChunks([keys, values], options, async (from, to) => {
      const tensors = [part('keys', keys, from, to), part('values', values, from, to)]
      const answer = await this.post('PUT', layer, 'kv', { offset: this.length(layer) }, tensors, options)
      this.lengths[layer] = ((await answer.json()) as { length: number }).length
    })
  }

  /** As `session.prefill` of the SDK, in chunks as `append` is. @returns output [Hq, T, d] and lse [Hq, T] */
  async prefill(
    layer: number,
    input: KeysValues & { queries: TensorInput },
    options: CallOptions = {},
  ): Promise<AttendResult> {
    const { keys, values } = checkRows(this.config, input, 'session.prefill')
    const T = keys.tokens
    const queries = checkHeads(this.config, input.queries, T, 'session.prefill')
    const { queryHeads, headDim: d } = this.config
    const [output, lse] = [new Float32Array(queryHeads * T * d), new Float32Array(queryHeads * T)]
    const send = async (from: number, to: number) => {
      const names = { keys, values, queries }
      const tensors = Object.entries(names).map(([name, tensor]) => part(name, tensor, from, to))
      const frame = await this.call(layer, 'prefill', { offset: this.length(layer) }, tensors, options)
      const piece = attendResult(frame)
      const n = to - from
      for (let h = 0; h < queryHeads; h++) {
        output.set(piece.output.subarray(h * n * d, (h + 1) * n * d), (h * T + from) * d)
        lse.set(piece.lse.subarray(h * n, (h + 1) * n), h * T + from)
      }
    }
    await this.inChunks([keys, values, queries], options, send, this.mostPrefilled)
    return { output, lse }
  }

  /** As `session.attend` of the SDK. */
  async attend(layer: number, input: { queries: TensorInput }, options: Signal = {}): Promise<AttendResult> {
    const queries = single(checkHeads(this.config, input?.queries, 1, 'session.attend'))
    return this.queue.run(async () => attendResult(await this.call(layer, 'attend', {}, [queries], options)))
  }

  /** Appends and attends in one request, of both or of none. */
  async step(layer: number, input: KeysValues & { queries: TensorInput }, options: Signal = {}): Promise<AttendResult> {
    const { keys, values } = checkRows(this.config, input, 'session.step')
    const queries = single(checkHeads(this.config, input.queries, 1, 'session.step'))
    const tensors = [part('keys', keys, 0, keys.tokens), part('values', values, 0, keys.tokens), queries]
    return this.queue.run(async () =>
      attendResult(await this.call(layer, 'step', { offset: this.length(layer) }, tensors, options)),
    )
  }

  /** As `session.retrieve` of the SDK. */
  async retrieve(
    layer: number,
    input: { queries: TensorInput; k?: number },
    options: Signal = {},
  ): Promise<RetrieveResult> {
    const queries = single(checkHeads(this.config, input?.queries, 1, 'session.retrieve'))
    return this.queue.run(async () => {
      const frame = await this.call(layer, 'retrieve', { k: input.k }, [queries], options)
      const indices = whole(frame, 'indices')
      return { indices, scores: floats(frame, 'scores'), k: indices.length / this.config.kvHeads }
    })
  }

  /** As `session.attendRange` of the SDK: what `mergePartials` takes. */
  async attendRange(
    layer: number,
    input: { queries: TensorInput; from: number; to: number },
    options: Signal = {},
  ): Promise<AttendResult> {
    const queries = single(checkHeads(this.config, input?.queries, 1, 'session.attendRange'))
    const { from, to } = input
    return this.queue.run(async () => attendResult(await this.call(layer, 'partial', { from, to }, [queries], options)))
  }

  /** Forgets every layer's tokens from `length` on. */
  async truncate(length: number, options: Signal = {}): Promise<void> {
    await this.queue.run(async () => {
      const answer = await this.transport.send('POST', `${this.path}/truncate?length=${length}`, {
        once: true,
        ...options,
      })
      this.take(((await answer.json()) as { lengths: number[] }).lengths)
    })
  }

  /** A second session with the same tokens. */
  async fork(options: Signal = {}): Promise<RemoteSession> {
    return this.queue.run(async () => {
      const answer = await this.transport.send('POST', `${this.path}/fork`, { once: true, ...options })
      return new RemoteSession(this.transport, (await answer.json()) as OpenedSession)
    })
  }

  /** The session as one safetensors file, streamed, as of the calls made before. */
  snapshot(options: Signal = {}): ReadableStream<Uint8Array> {
    const opened = this.queue.run(() => this.transport.send('GET', `${this.path}/snapshot`, options))
    opened.catch(() => {})
    let reader: ReadableStreamDefaultReader<Uint8Array> | undefined
    return new ReadableStream<Uint8Array>({
      async pull(controller) {
        reader ??= (await opened).body?.getReader()
        const part = await reader?.read()
        if (part?.value) controller.enqueue(part.value)
        else controller.close()
      },
      async cancel(reason) {
        reader ??= (await opened).body?.getReader()
        await reader?.cancel(reason)
      },
    })
  }

  /** Zones, calls, audited recall and bytes, as the server tells them; brings `length` up to date. */
  async stats(options: Signal = {}): Promise<Record<string, unknown> & { lengths: number[] }> {
    return this.queue.run(async () => {
      const answer = await this.transport.send('GET', this.path, options)
      const told = (await answer.json()) as Record<string, unknown> & { lengths: number[] }
      this.take(told.lengths)
      return told
    })
  }

  /** A WebSocket to this session, over which the steps of a token run back to back. @throws ParisError `backend_unavailable` */
  async socket(): Promise<SessionSocket> {
    return this.queue.run(() =>
      SessionSocket.open(this.transport.options, this.transport.url(`${this.path}/socket`), this.config, this.lengths),
    )
  }

  /** Frees the session on the server. One that is gone already is no error. */
  async dispose(): Promise<void> {
    await this.queue.run(async () => {
      await this.transport.send('DELETE', this.path).catch((error: { code?: string }) => {
        if (error.code !== 'not_found' && error.code !== 'session_lost') throw error
      })
    })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose()
  }

  private get path(): string {
    return `/v1/sessions/${encodeURIComponent(this.id)}`
  }

  private take(lengths: readonly number[]): void {
    lengths.forEach((length, layer) => {
      this.lengths[layer] = length
    })
  }

  /** Runs one request after the other, each of so many tokens as its bytes allow, and of `most` tokens. */
  private inChunks(
    tensors: readonly Tensor[],
    { signal, onProgress }: CallOptions,
    send: (from: number, to: number) => Promise<void>,
    most = Number.POSITIVE_INFINITY,
  ): Promise<void> {
    const total = tensors[0].tokens
    const size = Math.max(1, Math.min(most, Math.floor(this.chunk / tokenBytes(tensors))))
    return this.queue.run(async () => {
      for (let from = 0; from < total || from === 0; from += size) {
        throwIfAborted(signal, 'session')
        const to = Math.min(total, from + size)
        await send(from, to)
        onProgress?.({ done: to, total, unit: 'tokens' })
      }
    })
  }

  private async call(
    layer: number,
    verb: string,
    query: Record<string, number | undefined>,
    tensors: readonly OutTensor[],
    options: Signal,
  ): Promise<AnswerFrame> {
    const frame = await frameOf(await this.post('POST', layer, verb, query, tensors, options))
    this.lengths[layer] = Number(frame.metadata.get('length') ?? this.length(layer))
    return frame
  }

  private post(
    method: 'PUT' | 'POST',
    layer: number,
    verb: string,
    query: Record<string, number | undefined>,
    tensors: readonly OutTensor[],
    { signal }: Signal,
  ): Promise<Response> {
    const given = Object.entries(query).flatMap(([name, value]) => (value === undefined ? [] : [`${name}=${value}`]))
    const path = `${this.path}/layers/${layer}/${verb}${given.length > 0 ? `?${given.join('&')}` : ''}`
    const writes = verb === 'kv' || verb === 'prefill' || verb === 'step'
    return this.transport.send(method, path, { body: buildFrame(tensors), type: SAFETENSORS, signal, once: writes })
  }
}
