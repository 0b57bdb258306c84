import { ParisError } from '../errors.ts'
import type { AttendResult } from '../session/steps.ts'
import type { Answer } from './answer.ts'
import { badParameter, Refusal } from './problem.ts'
import type { Service } from './service.ts'
import { type Entry, lostError } from './sessions.ts'
import { type Frame, type OutTensor, takeTensors } from './tensors.ts'

/** The scalars of a call; which of them it reads its route says. */
export interface Scalars {
  readonly layer?: number
  readonly offset?: number
  readonly k?: number
  readonly length?: number
  readonly from?: number
  readonly to?: number
}

/** One call on a session, in its turn. */
export interface OpCall {
  readonly service: Service
  readonly entry: Entry
  readonly scalars: Scalars
  readonly frame: Frame
  readonly signal: AbortSignal
}

type Op = (call: OpCall) => Promise<Answer>

async function append(call: OpCall): Promise<Answer> {
  const { layer, shape } = at(call)
  const { inputs, tokens } = takeTensors(call.frame, { keys: shape.rows, values: shape.rows })
  const offset = checkOffset(call, layer, need(call, 'offset'))
  await keeping(call, layer, offset, tokens, inputs, () =>
    call.entry.session.append(layer, inputs, { signal: call.signal }),
  )
  return { status: 200, said: { offset, tokens, length: call.entry.session.length(layer) } }
}

async function prefill(call: OpCall): Promise<Answer> {
  const { layer, shape } = at(call)
  const { queryHeads, headDim } = call.entry.session.config.shape
  const shapes = { keys: shape.rows, values: shape.rows, queries: [queryHeads, 'T', headDim] } as const
  const { inputs, tokens } = takeTensors(call.frame, shapes)
  const offset = checkOffset(call, layer, call.scalars.offset)
  const result = await keeping(call, layer, offset, tokens, inputs, () =>
    call.entry.session.prefill(layer, inputs, { signal: call.signal }),
  )
  const said = { offset, tokens, length: call.entry.session.length(layer) }
  return { status: 200, said, tensors: attended(result, [queryHeads, tokens], headDim) }
}

async function attend(call: OpCall): Promise<Answer> {
  const { layer, shape } = at(call)
  const { inputs } = takeTensors(call.frame, { queries: shape.queries })
  const result = await call.entry.session.attend(layer, inputs, { signal: call.signal })
  const said = { length: call.entry.session.length(layer) }
  return { status: 200, said, tensors: attended(result, [shape.queries[0]], shape.queries[1]) }
}

/** Append and attend in one: a refusal of either leaves the session as it was. */
async function step(call: OpCall): Promise<Answer> {
  const { layer, shape } = at(call)
  const { session } = call.entry
  const { inputs, tokens } = takeTensors(call.frame, { keys: shape.rows, values: shape.rows, queries: shape.queries })
  const offset = checkOffset(call, layer, call.scalars.offset)
  const result = await keeping(call, layer, offset, tokens, inputs, async () => {
    await session.append(layer, inputs, { signal: call.signal })
    return session.attend(layer, inputs)
  })
  const said = { offset, tokens, length: session.length(layer) }
  return { status: 200, said, tensors: attended(result, [shape.queries[0]], shape.queries[1]) }
}

async function retrieve(call: OpCall): Promise<Answer> {
  const { layer, shape } = at(call)
  const { session } = call.entry
  const { inputs } = takeTensors(call.frame, { queries: shape.queries })
  const found = await session.retrieve(layer, { ...inputs, k: call.scalars.k }, { signal: call.signal })
  const size = [session.config.shape.kvHeads, found.k]
  return {
    status: 200,
    said: { k: found.k, length: session.length(layer) },
    tensors: [
      { name: 'indices', shape: size, data: found.indices },
      { name: 'scores', shape: size, data: found.scores },
    ],
  }
}

async function partial(call: OpCall): Promise<Answer> {
  const { layer, shape } = at(call)
  const { inputs } = takeTensors(call.frame, { queries: shape.queries })
  const [from, to] = [need(call, 'from'), need(call, 'to')]
  const result = await call.entry.session.attendRange(layer, { ...inputs, from, to }, { signal: call.signal })
  const said = { from, to, length: call.entry.session.length(layer) }
  return { status: 200, said, tensors: attended(result, [shape.queries[0]], shape.queries[1]) }
}

async function truncate({ service, entry, scalars, frame, signal: _ }: OpCall): Promise<Answer> {
  const { id, session } = entry
  takeTensors(frame, {})
  const length = scalars.length
  if (length === undefined) throw badParameter('length', length, 'a whole number of at least 0')
  checkTruncation(lengthsOf(entry), length)
  // The store first: a cache that is shortened cannot be lengthened again, a store can be told again.
  await service.stored(() => service.options.journal?.truncated(id, length))
  await session.truncate(length)
  return { status: 200, said: { lengths: lengthsOf(entry) } }
}

/** The calls on a session, over HTTP and over a socket alike. */
export const OPS = { append, prefill, attend, step, retrieve, partial, truncate } satisfies Record<string, Op>
export type OpName = keyof typeof OPS

/** Tokens of every layer. */
export function lengthsOf({ session }: Entry): number[] {
  return Array.from({ length: session.config.shape.layers }, (_, layer) => session.length(layer))
}

/** The layer and the shapes of what comes in. */
function at({ entry, scalars }: OpCall) {
  const { kvHeads, queryHeads, headDim } = entry.session.config.shape
  const layer = scalars.layer ?? -1
  entry.session.length(layer)
  return { layer, shape: { rows: [kvHeads, 'T', headDim], queries: [queryHeads, headDim] } as const }
}

function need({ scalars }: OpCall, name: 'offset' | 'from' | 'to'): number {
  const value = scalars[name]
  if (value === undefined) throw badParameter(name, value, 'a whole number of at least 0')
  return value
}

/** @throws ParisError `offset_mismatch` for a gap, a repeat or a call out of turn */
function checkOffset({ entry }: OpCall, layer: number, offset: number | undefined): number {
  const length = entry.session.length(layer)
  if (offset === undefined || offset === length) return length
  throw new Refusal(
    'offset_mismatch',
    {
      where: 'offset',
      got: String(offset),
      want: `${length}, the present length of the layer`,
      fix: 'Append in order, each token once; an Idempotency-Key makes a retry safe.',
    },
    { length },
  )
}

/**
 * Runs what appends and hands the rows to the host's store; where either fails, the layer is as it was.
 * @throws ParisError `session_lost` where it can't be made so: then the session is gone
 */
async function keeping<T>(
  { service, entry }: OpCall,
  layer: number,
  offset: number,
  tokens: number,
  rows: Parameters<NonNullable<Service['options']['journal']>['appended']>[4],
  body: () => Promise<T>,
): Promise<T> {
  const undo = entry.session.undo(layer)
  try {
    const result = await body()
    const { keys, values } = rows
    if (tokens > 0)
      await service.stored(() => service.options.journal?.appended(entry.id, layer, offset, tokens, { keys, values }))
    return result
  } catch (error) {
    await undo().catch((failure) => {
      // Nobody knows what the layer holds now. A device that was lost is told as that: its host opens another.
      const lost = [error, failure].find((each) => each instanceof ParisError && each.code === 'device_lost')
      throw service.sessions.loseOne(entry) ? (lost ?? lostError(failure)) : error
    })
    throw error
  }
}

function checkTruncation(lengths: readonly number[], length: number): void {
  const longest = Math.max(...lengths)
  if (length <= longest) return
  throw new ParisError('bad_length', {
    where: 'length',
    got: String(length),
    want: `a whole number from 0 to ${longest}`,
    fix: 'Truncation only shortens; append to lengthen.',
  })
}

function attended({ output, lse }: AttendResult, heads: readonly number[], d: number): OutTensor[] {
  return [
    { name: 'output', shape: [...heads, d], data: output },
    { name: 'lse', shape: heads, data: lse },
  ]
}
