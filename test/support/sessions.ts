import { expect } from 'vitest'
import type { Backend } from '../../sdk/backend.ts'
import { readPart, type SummaryPart } from '../../sdk/cache/summary.ts'
import { zonesOf } from '../../sdk/cache/zones.ts'
import type { PolicyOptions, SessionOptions } from '../../sdk/config.ts'
import { type ErrorCode, ParisError } from '../../sdk/errors.ts'
import type { Session } from '../../sdk/session/session.ts'
import { clusteredKeys, gaussians, random } from './inputs.ts'
import { expectSame } from './repeat.ts'

/** A small session that retrieves from its first dozens of tokens on. */
export function options(over: Partial<SessionOptions> = {}, policy: PolicyOptions = {}): SessionOptions {
  return {
    layers: 1,
    queryHeads: 4,
    kvHeads: 2,
    headDim: 16,
    capacity: 512,
    ...over,
    policy: { k: 8, sink: 4, local: 16, update: 8, denseBelow: 0, ...policy },
  }
}

/** Keys, values [H, n, d] and queries [Hq, n, d] of one layer of one sequence. */
export interface Sequence {
  readonly n: number
  readonly d: number
  readonly keys: Float32Array
  readonly values: Float32Array
  readonly queries: Float32Array
}

/** Clustered keys, and queries that look for them. */
export function sequence(seed: number, n: number, { kvHeads = 2, queryHeads = 4, headDim: d = 16 } = {}): Sequence {
  const next = random(seed + 1)
  const keys = clusteredKeys(seed, kvHeads, n, d)
  const values = gaussians(next, kvHeads * n * d)
  return { n, d, keys, values, queries: gaussians(next, queryHeads * n * d) }
}

/** Tokens [from, to) of [heads, n, d]. */
export function tokensOf(data: Float32Array, n: number, d: number, from: number, to: number): Float32Array {
  const heads = data.length / (n * d)
  const part = new Float32Array(heads * (to - from) * d)
  for (let h = 0; h < heads; h++) part.set(data.subarray((h * n + from) * d, (h * n + to) * d), h * (to - from) * d)
  return part
}

/** Keys and values of tokens [from, to). */
export function rows({ keys, values, n, d }: Sequence, from: number, to: number) {
  return { keys: tokensOf(keys, n, d, from, to), values: tokensOf(values, n, d, from, to) }
}

/** Queries of token t, [Hq, d]. */
export function queriesAt({ queries, n, d }: Sequence, t: number): Float32Array {
  return tokensOf(queries, n, d, t, t + 1)
}

/** Appends tokens [from, to) in chunks. */
export async function feed(session: Session, seq: Sequence, from: number, to: number, chunk = to - from, layer = 0) {
  for (let at = from; at < to; at += chunk) await session.append(layer, rows(seq, at, Math.min(to, at + chunk)))
}

/** Chunks as one. */
export function joined(chunks: readonly Uint8Array[]): Uint8Array {
  const out = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0))
  let at = 0
  for (const chunk of chunks) {
    out.set(chunk, at)
    at += chunk.length
  }
  return out
}

/** A whole stream. */
export async function bytesOf(stream: ReadableStream<Uint8Array>): Promise<Uint8Array> {
  const chunks: Uint8Array[] = []
  for await (const chunk of stream as unknown as AsyncIterable<Uint8Array>) chunks.push(chunk)
  return joined(chunks)
}

export const snapshotOf = (session: Session) => bytesOf(session.snapshot())

/** A stream of some bytes, in chunks. */
export function streamOf(bytes: Uint8Array, chunk = 1 << 16): ReadableStream<Uint8Array> {
  let at = 0
  return new ReadableStream({
    pull(controller) {
      if (at >= bytes.length) controller.close()
      else controller.enqueue(bytes.slice(at, at + chunk))
      at += chunk
    },
  })
}

const BY_KEY: readonly SummaryPart[] = ['signs', 'magnitudes', 'weights', 'scales', 'norms']

/** Everything that defines a session: its snapshot, every code it holds, its counts and exponents. */
export async function stateOf(session: Session): Promise<Record<string, Uint8Array>> {
  const { backend, cache, config } = session.state
  const out: Record<string, Uint8Array> = { snapshot: await snapshotOf(session) }
  for (let l = 0; cache && l < config.shape.layers; l++) {
    const { summary, length } = cache.layer(l)
    const zone = zonesOf(length, config.policy).retrieval
    for (let h = 0; zone > 0 && h < config.shape.kvHeads; h++)
      for (const part of BY_KEY)
        if (summary[part]) out[`${part} ${l}.${h}`] = await readPart(backend, summary, part, h, 0, zone)
    for (const part of ['counts', 'normExp'] as const) {
      const buf = summary[part]
      if (buf) out[`${part} ${l}`] = await backend.read(buf, 0, buf.bytes)
    }
  }
  return out
}

/** Two sessions hold the same, to the byte. */
export async function expectSameState(got: Session, want: Session) {
  const [a, b] = [await stateOf(got), await stateOf(want)]
  expect(Object.keys(a)).toEqual(Object.keys(b))
  for (const [name, bytes] of Object.entries(b)) expectSame(a[name], bytes, name)
}

/** The call is refused with that code. @returns the error, to look at its texts */
export async function refused(call: Promise<unknown> | (() => unknown), code: ErrorCode): Promise<ParisError> {
  let error: unknown
  try {
    await (typeof call === 'function' ? call() : call)
  } catch (caught) {
    error = caught
  }
  if (!(error instanceof ParisError)) return expect.fail(`want ${code}, got ${error}`)
  expect(error.code, error.message).toBe(code)
  for (const part of [error.where, error.got, error.want, error.fix]) expect(part.length).toBeGreaterThan(0)
  return error
}

/** The call is refused with that code and the session holds what it held. */
export async function refusedUnchanged(session: Session, call: () => Promise<unknown>, code: ErrorCode) {
  const before = await snapshotOf(session)
  const error = await refused(call, code)
  expectSame(await snapshotOf(session), before, `snapshot after ${code}`)
  return error
}

/** How near attention comes to f64 on each backend, as a share of max|V|. */
export const NEAR: Record<Backend['name'], number> = { reference: 1e-6, wasm: 1e-4, webgpu: 1e-4 }
