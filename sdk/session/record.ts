import { attendStep } from '../attend/attention.ts'
import type { Buf } from '../backend.ts'
import type { Cache } from '../cache/cache.ts'
import type { Dtype } from '../dtype.ts'
import { ParisError } from '../errors.ts'
import {
  attentionBuffers,
  checkBuffers,
  checkKeysValues,
  checkOnce,
  type GpuAttention,
  type GpuKeysValues,
  type Open,
  type Range,
  type Recording,
  ready,
  STORAGE,
} from './record-checks.ts'
import type { SessionState } from './state.ts'

/** See `Session.encodeAppend`. */
export function encodeAppend(call: Recording, input: GpuKeysValues): () => void {
  const open = ready(call)
  const { dtype, bufs } = checkKeysValues(call, input, [])
  return record(call, open, (wrap) => {
    const [keys, values] = bufs.map(wrap)
    appendRows(call, open.cache, { keys, values, dtype, tokens: input.tokens })
    call.state.calls.append++
  })
}

/** See `Session.encodeAttend`. */
export function encodeAttend({ state, encoder, layer, where }: Recording, input: GpuAttention): () => void {
  return encodeAttendAll(encoder, [{ state, layer, input }], where)
}

/** See `Engine.encodeAttendBatch`. */
export function encodeAttendAll(
  encoder: GPUCommandEncoder,
  items: readonly { readonly state: SessionState; readonly layer: number; readonly input: GpuAttention }[],
  where: string,
): () => void {
  const steps = items.map(({ state, layer, input }) => {
    const { cache, recorder } = ready({ state, encoder, layer, where })
    return { state, layer, cache, recorder, wanted: checkBuffers(where, attentionBuffers(state, input, 1)) }
  })
  checkOnce(items, where)
  if (steps.length === 0) return () => {}
  const { recorder, state: one } = steps[0]
  return recorder.recordInto(encoder, () => {
    const attended = steps.map(({ state: { config, scratch }, layer, cache, wanted }) => {
      const [queries, output, lse] = wanted.map(({ buffer, offset, bytes }) => recorder.wrap(buffer, offset, bytes))
      return { config, rotation: cache.rotation, layer: cache.layer(layer), scratch, queries, output, lse }
    })
    attendStep(one.backend, attended)
    for (const { state } of steps) state.calls.attend++
  })
}

/** See `Session.encodePrefill`. */
export function encodePrefill(call: Recording, input: GpuKeysValues & GpuAttention): () => void {
  const open = ready(call)
  const { config, backend, calls } = call.state
  const { tokens } = input ?? {}
  const { dtype, bufs } = checkKeysValues(call, input, attentionBuffers(call.state, input, tokens))
  const { kvHeads: heads, group, queryHeads, headDim } = config.shape
  const { device, reach } = open.recorder
  const wide = group * tokens * headDim * 4
  if (wide > reach) {
    const parts = { where: `${call.where}(queries)`, got: `${wide} bytes a KV head`, want: `at most ${reach}` }
    throw new ParisError('bad_shape', { ...parts, fix: 'Cut the prompt: one binding of this device holds no more.' })
  }
  let spare: GPUBuffer | undefined
  /** The kernel always writes lse: what nobody asked for goes to memory that lasts as long as the recording. */
  const spareLse = () => {
    const bytes = queryHeads * tokens * 4
    spare = device.createBuffer({ label: 'lse', size: bytes, usage: STORAGE })
    return { buffer: spare, offset: 0, bytes }
  }
  try {
    const release = record(call, open, (wrap) => {
      const [keys, values, queries, output, lse = wrap(spareLse())] = bufs.map(wrap)
      const first = open.cache.layer(call.layer).length
      appendRows(call, open.cache, { keys, values, dtype, tokens })
      const rows = open.cache.layer(call.layer)
      const job = { queries, tokens, first, keys: rows.keys, values: rows.values, heads, group, output, lse }
      backend.dense([{ ...job, scale: config.scale }])
      calls.prefill++
    })
    return () => {
      release()
      spare?.destroy()
    }
  } catch (error) {
    spare?.destroy()
    throw error
  }
}

/** Records `body`; a layer whose recording failed half-way has the length that it had. */
function record(
  { encoder, layer }: Recording,
  { cache, recorder }: Open,
  body: (wrap: (range: Range) => Buf) => void,
): () => void {
  const { length } = cache.layer(layer)
  try {
    return recorder.recordInto(encoder, () => body(({ buffer, offset, bytes }) => recorder.wrap(buffer, offset, bytes)))
  } catch (error) {
    cache.layer(layer).length = length
    throw error
  }
}

/** Stores tokens behind the layer's end and encodes what crossed into the retrieval zone. */
function appendRows(
  { state, layer }: Recording,
  cache: Cache,
  { keys, values, dtype, tokens }: { keys: Buf; values: Buf; dtype: Dtype; tokens: number },
): void {
  const { backend, config, scratch } = state
  const rows = cache.layer(layer)
  const common = { dtype, heads: config.shape.kvHeads, count: tokens, at: rows.length, refused: scratch.get('refused') }
  backend.store([
    { tokens: keys, rows: rows.keys, ...common },
    { tokens: values, rows: rows.values, ...common },
  ])
  state.refused.unread = true
  const job = cache.advance(layer, tokens)
  if (job) backend.encode([job])
}
