import { bf16ToF32, bitsF32, type Dtype, f16ToF32, f32ToBf16, f32ToF16, toF32 } from './dtype.ts'
import { describe, ParisError } from './errors.ts'

/**
 * A tensor as callers hand it in: `Float32Array` for f32, or the bits of a 16-bit type with a tag.
 * Row-major; its shape follows from the call.
 */
export type TensorInput =
  | Float32Array
  | { readonly dtype: 'f32'; readonly data: Float32Array }
  | { readonly dtype: 'f16' | 'bf16'; readonly data: Uint16Array }

/** A checked tensor [heads, tokens, d]. */
export interface Tensor {
  readonly dtype: Dtype
  readonly data: Float32Array | Uint16Array
  readonly heads: number
  readonly tokens: number
  readonly d: number
  /** The largest |x|. */
  readonly max: number
}

/** Where a tensor comes from and what it must look like. */
export interface TensorRule {
  /** e.g. `session.append`. */
  readonly where: string
  readonly name: string
  readonly heads: number
  readonly d: number
  /** Exact number of tokens, or any where unset. */
  readonly tokens?: number
}

/**
 * Checks dtype, size and that every element is finite.
 * @throws ParisError `bad_dtype`, `bad_shape`, `not_finite` with head, token and coordinate
 */
export function checkTensor(input: TensorInput, rule: TensorRule): Tensor {
  const { dtype, data } = untag(input, rule)
  const row = rule.heads * rule.d
  const tokens = data.length / row
  if (!Number.isInteger(tokens) || (rule.tokens !== undefined && tokens !== rule.tokens)) {
    throw new ParisError('bad_shape', {
      where: `${rule.where}(${rule.name})`,
      got: `${data.length} elements`,
      want: `[${rule.heads}, ${rule.tokens ?? 'tokens'}, ${rule.d}]: ${rule.tokens === undefined ? `a multiple of ${row}` : row * rule.tokens}`,
      fix: 'Lay heads outermost, then tokens, then the head dimension; keys and values must have as many tokens.',
    })
  }
  return { dtype, data, heads: rule.heads, tokens, d: rule.d, max: maxFinite(dtype, data, rule, tokens) }
}

/** Rows as a store keeps them, checked as `checkTensor` does. */
export function storedTensor(buffer: ArrayBufferLike, store: Dtype, rule: TensorRule): Tensor {
  if (store === 'f32') return checkTensor(new Float32Array(buffer), rule)
  return checkTensor({ dtype: store, data: new Uint16Array(buffer) }, rule)
}

function untag(input: TensorInput, rule: TensorRule): { dtype: Dtype; data: Float32Array | Uint16Array } {
  const bare = plainView(input)
  if (bare instanceof Float32Array) return { dtype: 'f32', data: bare }
  const { dtype, data } = (bare ? {} : (input ?? {})) as { dtype?: unknown; data?: unknown }
  const view = plainView(data)
  if (dtype === 'f32' && view instanceof Float32Array) return { dtype, data: view }
  if ((dtype === 'f16' || dtype === 'bf16') && view instanceof Uint16Array) return { dtype, data: view }
  throw new ParisError('bad_dtype', {
    where: `${rule.where}(${rule.name})`,
    got: dtype === undefined ? describe(input) : `dtype ${describe(dtype)} with ${describe(data)}`,
    want: "a Float32Array, { dtype: 'f32', data: Float32Array } or { dtype: 'f16' | 'bf16', data: Uint16Array }",
    fix: 'Wrap 16-bit bit patterns with their dtype; convert anything else to Float32Array. A detached buffer holds nothing.',
  })
}

/** Getters of every typed array, whatever a subclass puts over them. */
const [tagOf, bufferOf, offsetOf, lengthOf] = [Symbol.toStringTag, 'buffer', 'byteOffset', 'length'].map((name) => {
  const get = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), name)?.get
  return (view: unknown): unknown => get?.call(view)
})

/**
 * A view of our own class and of fixed length on the caller's memory: subclasses answer for their length and their
 * slices as they like, and views on a growing buffer grow. Undefined for anything but the two classes, of any realm.
 */
function plainView(value: unknown): Float32Array | Uint16Array | undefined {
  if (!ArrayBuffer.isView(value)) return undefined
  const tag = tagOf(value)
  if (tag !== 'Float32Array' && tag !== 'Uint16Array') return undefined
  const memory = bufferOf(value) as ArrayBuffer
  const [offset, length] = [offsetOf(value) as number, lengthOf(value) as number]
  try {
    return tag === 'Float32Array' ? new Float32Array(memory, offset, length) : new Uint16Array(memory, offset, length)
  } catch {
    return undefined
  }
}

/** Bit pattern of +Inf: a magnitude at or above it is not finite. */
const INFINITY_BITS = { f32: 0x7f800000, f16: 0x7c00, bf16: 0x7f80 } as const

function maxFinite(dtype: Dtype, data: Float32Array | Uint16Array, rule: TensorRule, tokens: number): number {
  // Magnitudes order as their bit patterns do, so one integer maximum finds both the range and any NaN or Inf.
  const bits = data instanceof Float32Array ? new Uint32Array(data.buffer, data.byteOffset, data.length) : data
  const mask = dtype === 'f32' ? 0x7fffffff : 0x7fff
  let max = 0
  for (let i = 0; i < bits.length; i++) {
    const magnitude = bits[i] & mask
    if (magnitude > max) max = magnitude
  }
  const limit = INFINITY_BITS[dtype]
  if (max < limit) return magnitudeOf(dtype, max)
  const at = bits.findIndex((b) => (b & mask) >= limit)
  const head = Math.floor(at / (tokens * rule.d))
  const token = Math.floor(at / rule.d) % tokens
  throw new ParisError('not_finite', {
    where: `${rule.where}(${rule.name})`,
    got: `${(bits[at] & mask) > limit ? 'NaN' : 'Inf'} at head ${head}, token ${token}, coordinate ${at % rule.d}`,
    want: 'finite numbers',
    fix: 'Find where the model overflowed; a mask of −Inf belongs in the scores, not in keys, values or queries.',
  })
}

function magnitudeOf(dtype: Dtype, bits: number): number {
  if (dtype === 'f32') return bitsF32(bits)
  return dtype === 'f16' ? f16ToF32(bits) : bf16ToF32(bits)
}

/** The largest finite value of a dtype, as a bound on |x| before rounding. */
const LIMIT = { f32: Number.POSITIVE_INFINITY, f16: 65520, bf16: 3.3961775292304601e38 } as const

/** @throws ParisError `out_of_range` where a value would round to Inf in the store */
export function checkStorable(tensor: Tensor, store: Dtype, where: string, name: string): void {
  if (tensor.max < LIMIT[store] || tensor.dtype === store) return
  throw new ParisError('out_of_range', {
    where: `${where}(${name})`,
    got: `|x| up to ${tensor.max}`,
    want: `less than ${LIMIT[store]}, to fit ${store}`,
    fix: "Open the session with store: 'bf16' or 'f32'.",
  })
}

/** Tokens [from, to) of one head as bytes of the store's dtype; a copy only where the dtype changes. */
export function rowBytes(tensor: Tensor, head: number, from: number, to: number, store: Dtype): Uint8Array {
  const { data, d, tokens, dtype } = tensor
  checkUnchanged(tensor)
  const part = data.subarray((head * tokens + from) * d, (head * tokens + to) * d)
  const same = dtype === store ? part : convert(part, dtype, store)
  return new Uint8Array(same.buffer, same.byteOffset, same.byteLength)
}

function convert(part: Float32Array | Uint16Array, from: Dtype, to: Dtype): Float32Array | Uint16Array {
  const wide = part instanceof Float32Array ? part : new Float32Array(part.length)
  if (wide !== part) toF32(from, part, 0, part.length, wide)
  if (to === 'f32') return wide
  const narrow = new Uint16Array(wide.length)
  if (to === 'bf16') for (let i = 0; i < wide.length; i++) narrow[i] = f32ToBf16(wide[i])
  else for (let i = 0; i < wide.length; i++) narrow[i] = f32ToF16(wide[i])
  return narrow
}

/** @throws ParisError `bad_shape` where the caller's memory has shrunk or gone since the call */
function checkUnchanged({ data, heads, tokens, d }: Tensor): void {
  if (data.length === heads * tokens * d) return
  throw new ParisError('bad_shape', {
    where: 'a tensor handed in before',
    got: `memory that has shrunk to ${data.length} elements or been transferred since the call`,
    want: `the ${heads * tokens * d} elements of the call`,
    fix: 'Leave arrays alone until the promise of the call has settled.',
  })
}

/** The whole tensor as f32. */
export function tensorF32(tensor: Tensor): Float32Array {
  checkUnchanged(tensor)
  return tensor.data instanceof Float32Array ? tensor.data : (convert(tensor.data, tensor.dtype, 'f32') as Float32Array)
}
