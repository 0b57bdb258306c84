import { runInDurableObject } from 'cloudflare:test'
import { env, exports } from 'cloudflare:workers'
import { expect } from 'vitest'
import { buildFrame, parseFrame } from '../../../sdk/http/tensors.ts'

/** Of a session that retrieves from its first dozens of tokens on. */
export const SHAPE = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 16, capacity: 512, store: 'f32' }
export const POLICY = { sink: 8, local: 16, update: 8, k: 8, denseBelow: 0 }

/** A call with alice's token, unless another is given. */
export function call(path: string, init: RequestInit = {}, token = 'token-of-alice'): Promise<Response> {
  const headers = new Headers(init.headers)
  headers.set('authorization', `Bearer ${token}`)
  return exports.default.fetch(new Request(`https://pariskv.test${path}`, { ...init, headers }))
}

/** Opens a session. @returns its id */
export async function open(extra: object = {}, init: RequestInit = {}): Promise<string> {
  const body = JSON.stringify({ ...SHAPE, policy: POLICY, ...extra })
  const response = await call('/v1/sessions', { ...init, method: 'POST', body })
  expect(response.status).toBe(201)
  return ((await response.json()) as { id: string }).id
}

let phase = 0
/** Others at each call. */
export const numbers = (length: number) => Float32Array.from({ length }, () => Math.sin(phase++ * 1.7))

interface Rows {
  readonly keys: Float32Array
  readonly values: Float32Array
}
/** keys and values [2, tokens, dim]. */
export const rows = (tokens: number, dim = 16): Rows => ({
  keys: numbers(2 * tokens * dim),
  values: numbers(2 * tokens * dim),
})

/** Appends as many tokens as the rows have. */
export function append(id: string, layer: number, offset: number, { keys, values }: Rows, dim = 16): Promise<Response> {
  const shape = [2, keys.length / (2 * dim), dim]
  const body = buildFrame([
    { name: 'keys', shape, data: keys },
    { name: 'values', shape, data: values },
  ])
  return call(`/v1/sessions/${id}/layers/${layer}/kv?offset=${offset}`, { method: 'PUT', body })
}

/** The output [4, 16] of a layer. */
export async function attend(id: string, layer: number, queries: Float32Array): Promise<Float32Array> {
  const body = buildFrame([{ name: 'queries', shape: [4, 16], data: queries }])
  const response = await call(`/v1/sessions/${id}/layers/${layer}/attend`, { method: 'POST', body })
  expect(response.status).toBe(200)
  return parseFrame(new Uint8Array(await response.arrayBuffer())).tensors.get('output')!.input as Float32Array
}

/** The object of a session. */
export const stub = (id: string) => env.SESSIONS.get(env.SESSIONS.idFromName(id) as never)
/** Of a GET. */
export const statusOf = async (path: string, token?: string) => (await call(path, {}, token)).status

/** Tables in an object's storage, but for the platform's own. */
export function tablesOf(id: string): Promise<unknown[]> {
  return runInDurableObject(stub(id), (_, { storage }) =>
    storage.sql.exec("SELECT name FROM sqlite_master WHERE name NOT LIKE '\\_cf\\_%' ESCAPE '\\'").toArray(),
  )
}
