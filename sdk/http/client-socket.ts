import { type ErrorCode, ParisError } from '../errors.ts'
import type { TensorInput } from '../input.ts'
import type { KeysValues } from '../session/append.ts'
import type { AttendResult } from '../session/steps.ts'
import { type AnswerFrame, type Axes, attendResult, checkHeads, checkRows, part, single } from './client-tensors.ts'
import type { ClientOptions } from './client-transport.ts'
import { base64url } from './ids.ts'
import { Refusal, STATUS } from './problem.ts'
import { buildFrame, type OutTensor, parseAnswer } from './tensors.ts'

interface Waiting {
  readonly resolve: (frame: AnswerFrame) => void
  readonly reject: (error: unknown) => void
}

/** Calls on one session over one WebSocket: sent at once, answered in order. Don't mix it with calls over HTTP. */
export class SessionSocket {
  private readonly waiting: Waiting[] = []
  private readonly expected: number[]
  private failure: ParisError | undefined

  private constructor(
    private readonly socket: WebSocket,
    private readonly axes: Axes,
    private readonly lengths: number[],
  ) {
    this.expected = [...lengths]
    socket.binaryType = 'arraybuffer'
    socket.addEventListener('message', ({ data }) => this.settle(data as ArrayBuffer))
    socket.addEventListener('close', ({ code }) => this.fail(`a close with code ${code}`))
    socket.addEventListener('error', () => this.fail('a broken connection'))
  }

  /** @internal @throws ParisError `backend_unavailable` */
  static async open(options: ClientOptions, url: string, axes: Axes, lengths: number[]): Promise<SessionSocket> {
    const protocols = ['pariskv']
    if (options.token !== undefined)
      protocols.push(`pariskv.token.${base64url(new TextEncoder().encode(options.token))}`)
    const at = url.replace(/^http/, 'ws')
    const raw = options.webSocket ? options.webSocket(at, protocols) : new WebSocket(at, protocols)
    const socket = new SessionSocket(raw, axes, lengths)
    if (raw.readyState !== 1)
      await new Promise<void>((resolve, reject) => {
        raw.addEventListener('open', () => resolve())
        raw.addEventListener('close', ({ code }) => reject(broken(`a close with code ${code}`)))
        raw.addEventListener('error', () => reject(broken('a connection that was refused')))
      })
    return socket
  }

  /** Appends tokens to one layer, [H, tokens, d]: at most what one message may hold. */
  async append(layer: number, input: KeysValues): Promise<void> {
    const { keys, values } = checkRows(this.axes, input, 'socket.append')
    const tensors = [part('keys', keys, 0, keys.tokens), part('values', values, 0, keys.tokens)]
    await this.write(layer, 'append', keys.tokens, tensors)
  }

  /** Appends and attends, of both or of none. */
  async step(layer: number, input: KeysValues & { queries: TensorInput }): Promise<AttendResult> {
    const { keys, values } = checkRows(this.axes, input, 'socket.step')
    const queries = single(checkHeads(this.axes, input.queries, 1, 'socket.step'))
    const tensors = [part('keys', keys, 0, keys.tokens), part('values', values, 0, keys.tokens), queries]
    return attendResult(await this.write(layer, 'step', keys.tokens, tensors))
  }

  /** One decode step of a layer. */
  async attend(layer: number, input: { queries: TensorInput }): Promise<AttendResult> {
    const queries = single(checkHeads(this.axes, input?.queries, 1, 'socket.attend'))
    return attendResult(await this.send({ op: 'attend', layer: String(layer) }, [queries]))
  }

  /** Closes the connection; the session stays. Calls without an answer fail. */
  close(): void {
    this.socket.close(1000)
  }

  /** Sends what appends, behind all that was sent before. */
  private async write(layer: number, op: string, tokens: number, tensors: readonly OutTensor[]): Promise<AnswerFrame> {
    const offset = this.expected[layer] ?? 0
    this.expected[layer] = offset + tokens
    try {
      const frame = await this.send({ op, layer: String(layer), offset: String(offset) }, tensors)
      this.lengths[layer] = Number(frame.metadata.get('length'))
      return frame
    } catch (error) {
      // What was refused was not appended: the next one starts where the server is.
      const told = error instanceof Refusal ? error.extra.length : undefined
      this.expected[layer] = told ?? this.lengths[layer]
      throw error
    }
  }

  private send(metadata: Record<string, string>, tensors: readonly OutTensor[]): Promise<AnswerFrame> {
    if (this.failure) return Promise.reject(this.failure)
    return new Promise((resolve, reject) => {
      this.waiting.push({ resolve, reject })
      this.socket.send(buildFrame(tensors, metadata))
    })
  }

  private settle(data: ArrayBuffer): void {
    const waiting = this.waiting.shift()
    try {
      const frame = parseAnswer(new Uint8Array(data))
      if (frame.metadata.get('status') === '200') waiting?.resolve(frame)
      else waiting?.reject(refusalOf(frame.metadata))
    } catch (error) {
      waiting?.reject(error)
    }
  }

  private fail(got: string): void {
    this.failure ??= broken(got)
    for (const { reject } of this.waiting.splice(0)) reject(this.failure)
  }
}

function refusalOf(metadata: ReadonlyMap<string, string>): Refusal {
  const text = (name: string) => metadata.get(name) ?? ''
  const code = Object.hasOwn(STATUS, text('code')) ? (text('code') as ErrorCode) : 'internal'
  const number = (name: string) => (metadata.has(name) ? Number(text(name)) : undefined)
  const parts = { where: text('where'), got: text('got'), want: text('want'), fix: text('fix') }
  return new Refusal(code, parts, { retryAfter: number('retryAfter'), length: number('length') })
}

function broken(got: string): ParisError {
  return new ParisError('backend_unavailable', {
    where: 'session.socket',
    got,
    want: 'an open WebSocket',
    fix: 'Open another one; session.stats() tells how far the session is.',
  })
}
