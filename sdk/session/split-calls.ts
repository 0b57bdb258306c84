import type { GpuRecorder } from '../backend.ts'
import type { Cache } from '../cache/cache.ts'
import { describe, ParisError } from '../errors.ts'
import { Arrival } from './arrival.ts'
import { encodeAppend } from './record.ts'
import {
  attentionBuffers,
  checkBuffers,
  checkKeysValues,
  checkOnce,
  type GpuAttention,
  type Range,
  type Recording,
  ready,
} from './record-checks.ts'
import { reserveRoom } from './reserve.ts'
import { type GpuStep, type Part, SplitStep } from './split-step.ts'
import type { SessionState } from './state.ts'

/** See `Engine.encodeRetrieveBatch`. @param queued whether this is a call of the session itself */
export function encodeRetrieveAll(
  encoder: GPUCommandEncoder,
  items: readonly { readonly state: SessionState; readonly layer: number; readonly input: GpuStep }[],
  where: string,
  queued = false,
): SplitStep {
  checkOnce(items, where)
  if (items.length === 0)
    throw new ParisError('bad_config', {
      where,
      got: 'no session',
      want: 'at least one',
      fix: 'Record steps of sessions that there are.',
    })
  const { backend } = items[0].state
  const parts = items.map(({ state, layer, input }) => partOf({ state, encoder, layer, where, queued }, input))
  const step = new SplitStep(parts, backend, backend.recorder as GpuRecorder, where)
  try {
    step.begin(encoder)
  } catch (error) {
    step.release()
    throw error
  }
  return step
}

/** See `Session.attendFrom`. */
export async function attendFrom(state: SessionState, layer: number, input: GpuAttention & GpuStep): Promise<void> {
  const where = 'session.attendFrom'
  return state.run(where, async () => {
    if (state.backend.recorder) checkBuffers(where, attentionBuffers(state, input, 1))
    state.checkLayer(layer, where)
    await reserveRoom(state, input?.append ? 1 : 0, where, [layer])
    const { recorder } = state.backend
    const encode = () => recorder?.device.createCommandEncoder() as GPUCommandEncoder
    const [first, second] = [encode(), encode()]
    const step = encodeRetrieveAll(first, [{ state, layer, input }], where, true)
    let submitted = false
    try {
      recorder?.device.queue.submit([first.finish()])
      step.encodeAttend(second, [input])
      await step.fetchNow()
      recorder?.device.queue.submit([second.finish()])
      submitted = true
    } finally {
      step.release(submitted)
    }
  })
}

/** Checks one session's part. */
function partOf(call: Recording, input: GpuStep): Part {
  const { state, layer, where } = call
  const { cache, recorder } = ready(call, true)
  const wanted = attentionBuffers(state, input as GpuAttention, 1).slice(0, 1)
  const { append } = input ?? {}
  const part = { state, layer, cache }
  if (!append) {
    const [queries] = checkBuffers(where, wanted)
    checkPlaces(call, cache, 0)
    return { ...part, queries }
  }
  if (append.tokens !== 1) {
    const got = `${describe(append.tokens)} tokens`
    const fix = 'Append what comes before it first.'
    throw new ParisError('bad_shape', { where: `${where}(append)`, got, want: 'the latest one', fix })
  }
  const { dtype, bufs } = checkKeysValues(call, append, wanted, cache.layer(layer).offload !== undefined)
  const [keys, values, queries] = bufs
  checkPlaces(call, cache, 1)
  if (!cache.layer(layer).offload) return { ...part, queries, append: () => void encodeAppend(call, append) }
  const wrap = ({ buffer, offset, bytes }: Range) => recorder.wrap(buffer, offset, bytes)
  return {
    ...part,
    queries,
    arrival: new Arrival(state, layer, cache, { keys: wrap(keys), values: wrap(values), dtype }),
  }
}

/** @throws ParisError `offload_needs_submit` where rows have to come from the host first */
function checkPlaces({ layer, where }: Recording, cache: Cache, tokens: number): void {
  const { offload, length, stale } = cache.layer(layer)
  if (!offload || (!stale && offload.hasRoom(length, tokens))) return
  throw new ParisError('offload_needs_submit', {
    where,
    got: 'a layer whose latest rows have to be brought to the device, or that has no room on the host',
    want: 'one that is ready',
    fix: 'Await session.reserve(1) before the recording.',
  })
}
