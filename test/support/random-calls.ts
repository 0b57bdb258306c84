import fc from 'fast-check'
import type { CallOptions } from '../../sdk/calls.ts'
import type { SessionOptions } from '../../sdk/config.ts'
import type { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { random } from './inputs.ts'

/** One call on a session, its data drawn from `seed`. */
export type Call =
  | {
      readonly kind: 'append' | 'prefill' | 'batch'
      readonly layer: number
      readonly seed: number
      readonly tokens: number
    }
  | { readonly kind: 'attend'; readonly layer: number; readonly seed: number }
  | { readonly kind: 'retrieve'; readonly layer: number; readonly seed: number; readonly k: number }
  | { readonly kind: 'truncate'; readonly length: number }

const seed = fc.nat(0xffffffff)
const layer = fc.nat(1)
/** Mostly a few tokens; sometimes more than a prefill takes at once. */
const tokens = fc.oneof(
  { weight: 6, arbitrary: fc.nat(30) },
  { weight: 1, arbitrary: fc.integer({ min: 257, max: 400 }) },
)

/** Any call; two in three add tokens. */
export const anyCall: fc.Arbitrary<Call> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constantFrom('append', 'prefill', 'batch'), layer, tokens, seed }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constantFrom('attend', 'retrieve'),
      layer,
      k: fc.integer({ min: 1, max: 9 }),
      seed,
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('truncate'), length: fc.nat(800) }) },
)

/** Small shapes of two layers, every policy; retrieval from the first dozens of tokens on. */
export const anyOptions: fc.Arbitrary<SessionOptions> = fc
  .record({
    kvHeads: fc.integer({ min: 1, max: 2 }),
    group: fc.integer({ min: 1, max: 2 }),
    headDim: fc.constantFrom(8, 16, 24),
    store: fc.constantFrom(undefined, 'f32', 'f16', 'bf16'),
    policy: fc.record({
      coarse: fc.constantFrom('signs', 'collision'),
      k: fc.integer({ min: 1, max: 9 }),
      sink: fc.nat(6),
      local: fc.nat(20),
      update: fc.integer({ min: 1, max: 40 }),
      group: fc.constantFrom('mean', 'max'),
      denseBelow: fc.constantFrom(0, 40),
      normWeighted: fc.boolean(),
      auditEvery: fc.nat(3),
    }),
  })
  .map(({ group, ...rest }) => ({ ...rest, queryHeads: rest.kvHeads * group, layers: 2, capacity: 2000 }))

/** Uniform, one in fifty 40 times as large. */
function draws(next: () => number, count: number): Float32Array {
  return Float32Array.from({ length: count }, () => (next() * 2 - 1) * (next() < 0.02 ? 40 : 1))
}

/** Makes the call. @returns what it gave, as typed arrays */
export async function play(
  engine: Engine,
  session: Session,
  call: Call,
  options: CallOptions = {},
): Promise<(Float32Array | Uint32Array)[]> {
  if (call.kind === 'truncate') {
    await session.truncate(call.length)
    return []
  }
  const { kvHeads, queryHeads, headDim: d } = session.config.shape
  const next = random(call.seed)
  if (call.kind === 'attend') {
    const { output, lse } = await session.attend(call.layer, { queries: draws(next, queryHeads * d) }, options)
    return [output, lse]
  }
  if (call.kind === 'retrieve') {
    const queries = draws(next, queryHeads * d)
    const { indices, scores } = await session.retrieve(call.layer, { queries, k: call.k }, options)
    return [indices, scores]
  }
  const [keys, values] = [0, 1].map(() => draws(next, kvHeads * call.tokens * d))
  if (call.kind === 'append') await session.append(call.layer, { keys, values }, options)
  if (call.kind === 'batch')
    await engine.appendBatch(
      [call.layer, 0].map((layer) => ({ session, layer, keys, values })),
      options,
    )
  if (call.kind !== 'prefill') return []
  const queries = draws(next, queryHeads * call.tokens * d)
  const { output, lse } = await session.prefill(call.layer, { keys, values, queries }, options)
  return [output, lse]
}
