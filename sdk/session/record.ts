import { attendStep } from '../attend/attention.ts'
import type { Buf, GpuRecorder } from '../backend.ts'
import type { Cache } from '../cache/cache.ts'
import { checkRoom } from '../cache/room.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import { describe, type ErrorCode, ParisError } from '../errors.ts'
import { disposedError, type SessionState } from './state.ts'

/** A GPUBuffer of the engine's device with usage STORAGE, from its start or from a multiple of 16 bytes. */
export type GpuTensor = GPUBuffer | { readonly buffer: GPUBuffer; readonly offset: number }

/** Keys and values [H, tokens, d] on the device. */
export interface GpuKeysValues {
  readonly keys: GpuTensor
  readonly values: GpuTensor
  readonly tokens: number
  /** Of keys and values alike; f32 by default. */
  readonly dtype?: Dtype
}

/** Queries [Hq, T, d] f32 on the device, and where output [Hq, T, d] f32 and lse [Hq, T] f32 go; T is 1 for a step. */
export interface GpuAttention {
  readonly queries: GpuTensor
  readonly output: GpuTensor
  readonly lse?: GpuTensor
}

/** One recording of one layer. */
interface Recording {
  readonly state: SessionState
  readonly encoder: GPUCommandEncoder
  readonly layer: number
  readonly where: string
}

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
  if (new Set(items.map(({ state }) => state)).size < items.length) {
    const fix = 'Record its layers one after the other.'
    throw new ParisError('bad_config', { where, got: 'a session twice', want: 'each session once', fix })
  }
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
}

const STORAGE = 0x80

/** A checked range of a caller's GPUBuffer. */
interface Range {
  readonly buffer: GPUBuffer
  readonly offset: number
  readonly bytes: number
}

/** A GPUBuffer as handed in and what it must hold. */
interface Wanted {
  readonly name: string
  readonly given: GpuTensor | undefined
  readonly bytes: number
  readonly written?: boolean
}

type Open = { readonly cache: Cache; readonly recorder: GpuRecorder }

/** @throws ParisError before anything is recorded */
function ready({ state, encoder, layer, where }: Recording): Open {
  const refuse = (code: ErrorCode, got: string, want: string, fix: string) =>
    new ParisError(code, { where, got, want, fix })
  if (state.disposed) throw disposedError(where)
  const { recorder, name } = state.backend
  if (!recorder) {
    const fix = "Open the engine with device: 'webgpu', or call the form that takes typed arrays."
    throw refuse('backend_unavailable', `a session on ${name}`, 'a session on webgpu', fix)
  }
  state.checkLayer(layer, where)
  if (typeof encoder?.beginComputePass !== 'function')
    throw refuse(
      'bad_dtype',
      describe(encoder),
      'a GPUCommandEncoder',
      'Make it with engine.gpu.createCommandEncoder().',
    )
  if (state.queue.busy)
    throw refuse('busy', 'calls of this session under way', 'none', 'Await them first: recording does not queue.')
  if (!state.cache) {
    const fix = "Create the session with store: 'bf16', 'f16' or 'f32'."
    throw refuse('bad_config', 'a session that has no memory yet', 'one that took it when it was created', fix)
  }
  if (state.cache.offload) {
    const fix = "Call append, prefill or attend, which read back what was retrieved; or open it with offload: 'never'."
    throw refuse('offload_needs_submit', 'a session whose rows are on the host', 'rows on the device', fix)
  }
  return { cache: state.cache, recorder }
}

function checkKeysValues({ state, layer, where }: Recording, input: GpuKeysValues, others: readonly Wanted[]) {
  const { keys, values, tokens, dtype = 'f32' } = input ?? {}
  if (!Number.isInteger(tokens) || tokens < 1) {
    const fix = 'Say how many tokens the buffers hold.'
    throw new ParisError('bad_shape', { where: `${where}(tokens)`, got: describe(tokens), want: 'at least 1', fix })
  }
  if (!['f32', 'f16', 'bf16'].includes(dtype)) {
    const fix = 'Name the dtype of keys and values.'
    const want = "'f32', 'f16' or 'bf16'"
    throw new ParisError('bad_dtype', { where: `${where}(dtype)`, got: describe(dtype), want, fix })
  }
  checkRoom(state.length(layer), tokens, state.config.capacity, where)
  const { kvHeads, headDim } = state.config.shape
  const bytes = kvHeads * tokens * headDim * dtypeBytes(dtype)
  const own = [
    { name: 'keys', given: keys, bytes },
    { name: 'values', given: values, bytes },
  ]
  return { dtype, bufs: checkBuffers(where, [...own, ...others]) }
}

function attentionBuffers({ config }: SessionState, input: GpuAttention, tokens: number): Wanted[] {
  const { queries, output, lse } = input ?? {}
  const rows = config.shape.queryHeads * tokens
  const bytes = rows * config.shape.headDim * 4
  const wanted: Wanted[] = [
    { name: 'queries', given: queries, bytes },
    { name: 'output', given: output, bytes, written: true },
  ]
  return lse ? [...wanted, { name: 'lse', given: lse, bytes: rows * 4, written: true }] : wanted
}

/** @throws ParisError `bad_dtype`, `bad_shape` */
function checkBuffers(where: string, wanted: readonly Wanted[]): Range[] {
  const ranges = wanted.map(({ name, given, bytes }) => {
    const placed = typeof given === 'object' && given !== null && 'buffer' in given
    const { buffer, offset } = placed ? given : { buffer: given, offset: 0 }
    const refuse = (code: ErrorCode, got: string, want: string, fix: string): ParisError =>
      new ParisError(code, { where: `${where}(${name})`, got, want, fix })
    if (typeof buffer?.size !== 'number' || typeof buffer.usage !== 'number' || !(buffer.usage & STORAGE)) {
      const got = typeof buffer?.usage === 'number' ? `a GPUBuffer of usage ${buffer.usage}` : describe(buffer)
      throw refuse('bad_dtype', got, 'a GPUBuffer with usage STORAGE', 'Create it on engine.gpu with that usage.')
    }
    if (!Number.isInteger(offset) || offset < 0 || offset % 16 !== 0)
      throw refuse('bad_shape', `offset ${describe(offset)}`, 'a multiple of 16', 'Copy the tensor to such an offset.')
    if (buffer.size % 4 !== 0 || buffer.size - offset < bytes) {
      const fix = 'Lay heads outermost, then tokens, then the head dimension; give a buffer that holds all of them.'
      throw refuse('bad_shape', `${buffer.size - offset} bytes`, `at least ${bytes}, and a size in whole words`, fix)
    }
    return { buffer, offset, bytes }
  })
  ranges.forEach(({ buffer }, i) => {
    if (!wanted[i].written || ranges.filter((other) => other.buffer === buffer).length === 1) return
    const fix = 'WebGPU does not let one dispatch write a buffer that it binds twice.'
    const parts = { where: `${where}(${wanted[i].name})`, got: 'a GPUBuffer given twice', want: 'one of its own', fix }
    throw new ParisError('bad_shape', parts)
  })
  return ranges
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
