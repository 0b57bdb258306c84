import { expect } from 'vitest'
import type { SessionOptions } from '../../sdk/config.ts'
import { STATUS } from '../../sdk/http/problem.ts'
import { buildFrame, type OutTensor, parseAnswer, SAFETENSORS } from '../../sdk/http/tensors.ts'
import { queriesAt, rows, type Sequence } from '../support/sessions.ts'

/** A running app, seen from outside. It knows the tokens of two tenants. */
export interface Served {
  /** As the global fetch, with a path in place of the URL. */
  readonly fetch: (path: string, init?: RequestInit) => Promise<Response>
  /** Frees it after the suite. */
  readonly close: () => Promise<void>
}

/** Tokens and tenants that every served app knows. */
export const TOKENS: ReadonlyMap<string, string> = new Map([
  ['token-of-alice', 'alice'],
  ['token-of-bob', 'bob'],
])

/** A session that retrieves from its first dozens of tokens on. */
export const SMALL: SessionOptions = {
  layers: 2,
  queryHeads: 4,
  kvHeads: 2,
  headDim: 16,
  capacity: 512,
  policy: { k: 8, sink: 4, local: 16, update: 8, denseBelow: 0 },
}

/** Requests of one tenant. */
export class Caller {
  constructor(
    readonly served: Served,
    readonly token: string | null = 'token-of-alice',
  ) {}

  /** Any request, with the token unless the headers have one. */
  async send(method: string, path: string, body?: BodyInit, headers: Record<string, string> = {}): Promise<Response> {
    const own: Record<string, string> = this.token === null ? {} : { authorization: `Bearer ${this.token}` }
    const stream = body instanceof ReadableStream && { duplex: 'half' }
    return this.served.fetch(path, { method, body, headers: { ...own, ...headers }, ...stream } as RequestInit)
  }

  /** A request that must succeed, and its JSON. */
  async json(method: string, path: string, body?: BodyInit, headers?: Record<string, string>) {
    const response = await this.send(method, path, body, headers)
    if (!response.ok) expect.fail(`${method} ${path}: ${response.status} ${await response.text()}`)
    return (await response.json()) as Record<string, unknown>
  }

  /** A session's id. */
  async open(over: object = {}): Promise<string> {
    return String((await this.json('POST', '/v1/sessions', JSON.stringify({ ...SMALL, ...over }))).id)
  }

  /** A call on a layer that must succeed, and its frame. */
  async frame(id: string, path: string, tensors: readonly OutTensor[]) {
    const response = await this.send('POST', `/v1/sessions/${id}/layers/${path}`, buildFrame(tensors))
    if (!response.ok) expect.fail(`${path}: ${response.status} ${await response.text()}`)
    expect(response.headers.get('content-type')).toBe(SAFETENSORS)
    return parseAnswer(new Uint8Array(await response.arrayBuffer()))
  }

  /** Appends tokens [from, to) to layer 0, or another. */
  async append(id: string, seq: Sequence, from: number, to: number, layer = 0) {
    const path = `/v1/sessions/${id}/layers/${layer}/kv?offset=${from}`
    return this.json('PUT', path, buildFrame(rowTensors(seq, from, to)))
  }

  async lengths(id: string): Promise<unknown> {
    return (await this.json('GET', `/v1/sessions/${id}`)).lengths
  }
}

/** keys and values [2, T, 16]. */
export function rowTensors(seq: Sequence, from: number, to: number): OutTensor[] {
  const { keys, values } = rows(seq, from, to)
  const shape = [2, to - from, 16]
  return [
    { name: 'keys', shape, data: keys },
    { name: 'values', shape, data: values },
  ]
}

/** queries [4, 16] of one token. */
export function queryTensor(seq: Sequence, t: number): OutTensor {
  return { name: 'queries', shape: [4, 16], data: queriesAt(seq, t) }
}

/** Fails unless a response is a whole problem of that code. @returns the problem */
export async function expectProblem(response: Response, code: keyof typeof STATUS) {
  const text = await response.text()
  if (response.status !== STATUS[code]) expect.fail(`${response.status}, want ${STATUS[code]} ${code}: ${text}`)
  expect(response.headers.get('content-type')).toBe('application/problem+json')
  const problem = JSON.parse(text) as Record<string, unknown>
  expect(problem).toMatchObject({ type: `urn:pariskv:problem:${code}`, status: STATUS[code], code })
  for (const field of ['title', 'where', 'got', 'want', 'fix']) expect(problem[field], field).toMatch(/./)
  return problem
}
