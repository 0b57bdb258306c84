import type { GpuRecorder } from '../backend.ts'
import type { Cache } from '../cache/cache.ts'
import { checkRoom } from '../cache/room.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import { describe, type ErrorCode, ParisError } from '../errors.ts'
import { disposedError, type SessionState } from './state.ts'

/**
 * A GPUBuffer of the engine's device with usage STORAGE, from its start or from a multiple of 16 bytes. One that has been
 * destroyed, or is of another device, shows at the submit only, and ends the engine with `device_lost`.
 */
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
export interface Recording {
  readonly state: SessionState
  readonly encoder: GPUCommandEncoder
  readonly layer: number
  readonly where: string
  /** Whether it is part of a call that the session's queue runs. */
  readonly queued?: boolean
}

/** GPUBufferUsage.STORAGE. */
export const STORAGE = 0x80
/** GPUBufferUsage.COPY_SRC. */
const COPY_SRC = 0x04

/** A checked range of a caller's GPUBuffer. */
export interface Range {
  readonly buffer: GPUBuffer
  readonly offset: number
  readonly bytes: number
}

/** A GPUBuffer as handed in and what it must hold. */
export interface Wanted {
  readonly name: string
  readonly given: GpuTensor | undefined
  readonly bytes: number
  readonly written?: boolean
  /** Whether commands copy from it too. */
  readonly copied?: boolean
}

export type Open = { readonly cache: Cache; readonly recorder: GpuRecorder }

/**
 * @param anywhere whether rows may be on the host
 * @throws ParisError before anything is recorded
 */
export function ready({ state, encoder, layer, where, queued }: Recording, anywhere = false): Open {
  const refuse = (code: ErrorCode, got: string, want: string, fix: string) =>
    new ParisError(code, { where, got, want, fix })
  if (state.disposed && !queued) throw disposedError(where)
  const { recorder, name } = state.backend
  if (!recorder) {
    const fix = "Open the engine with device: 'webgpu', or call the form that takes typed arrays."
    throw refuse('backend_unavailable', `a session on ${name}`, 'a session on webgpu', fix)
  }
  state.checkLayer(layer, where)
  checkEncoder(encoder, where)
  if (state.queue.busy && !queued)
    throw refuse('busy', 'calls of this session under way', 'none', 'Await them first: recording does not queue.')
  if (!state.cache) {
    const fix = "Create the session with store: 'bf16', 'f16' or 'f32'."
    throw refuse('bad_config', 'a session that has no memory yet', 'one that took it when it was created', fix)
  }
  if (state.cache.offload && !anywhere) {
    const fix =
      "Call attendFrom, or append, prefill or attend, which read back what was retrieved; or open it with offload: 'never'."
    throw refuse('offload_needs_submit', 'a session whose rows are on the host', 'rows on the device', fix)
  }
  return { cache: state.cache, recorder }
}

/** A batch records one layer of each session. @throws ParisError `bad_config` */
export function checkOnce(items: readonly { readonly state: SessionState }[], where: string): void {
  if (new Set(items.map(({ state }) => state)).size === items.length) return
  const fix = 'Record its layers one after the other.'
  throw new ParisError('bad_config', { where, got: 'a session twice', want: 'each session once', fix })
}

/** @throws ParisError `bad_dtype` */
export function checkEncoder(encoder: GPUCommandEncoder, where: string): void {
  if (typeof encoder?.beginComputePass === 'function') return
  const fix = 'Make it with engine.gpu.createCommandEncoder().'
  throw new ParisError('bad_dtype', { where, got: describe(encoder), want: 'a GPUCommandEncoder', fix })
}

/**
 * @param copied whether commands copy keys and values too
 * @throws ParisError `bad_shape`, `bad_dtype`, `capacity`
 */
export function checkKeysValues(
  { state, layer, where }: Recording,
  input: GpuKeysValues,
  others: readonly Wanted[],
  copied = false,
) {
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
    { name: 'keys', given: keys, bytes, copied },
    { name: 'values', given: values, bytes, copied },
  ]
  return { dtype, bufs: checkBuffers(where, [...own, ...others]) }
}

/** What attention reads and writes, as handed in. */
export function attentionBuffers({ config }: SessionState, input: GpuAttention, tokens: number): Wanted[] {
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
export function checkBuffers(where: string, wanted: readonly Wanted[]): Range[] {
  const ranges = wanted.map(({ name, given, bytes, copied }) => {
    const placed = typeof given === 'object' && given !== null && 'buffer' in given
    const { buffer, offset } = placed ? given : { buffer: given, offset: 0 }
    const refuse = (code: ErrorCode, got: string, want: string, fix: string): ParisError =>
      new ParisError(code, { where: `${where}(${name})`, got, want, fix })
    const usage = copied ? STORAGE | COPY_SRC : STORAGE
    const known = typeof buffer?.size === 'number' && typeof buffer.usage === 'number'
    if (!known || (buffer.usage & usage) !== usage) {
      const got = typeof buffer?.usage === 'number' ? `a GPUBuffer of usage ${buffer.usage}` : describe(buffer)
      const want = `a GPUBuffer with usage STORAGE${copied ? ' and COPY_SRC' : ''}`
      throw refuse('bad_dtype', got, want, 'Create it on engine.gpu with that usage.')
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
