import type { Dtype } from '../dtype.ts'
import { ParisError } from '../errors.ts'
import type { TensorInput } from '../input.ts'
import { buildHeader, headerBytes, parseHeader, type TensorDtype, type TensorEntry } from '../safetensors.ts'
import { badBody, Refusal } from './problem.ts'

/** The media type of bodies with tensors. */
export const SAFETENSORS = 'application/x-safetensors'

/** Bounds of one frame: bytes of the JSON header, tensors, dimensions of one. */
export const FRAME = { header: 64 * 1024, tensors: 16, rank: 4 } as const

const FIX = 'Write the body with safetensors: tensors by name, F32, F16 or BF16, row-major, little-endian.'

/** A tensor of a frame. */
export interface WireTensor<I = TensorInput> {
  readonly shape: readonly number[]
  readonly input: I
}

/** A parsed frame. */
export interface Frame<I = TensorInput> {
  readonly tensors: ReadonlyMap<string, WireTensor<I>>
  readonly metadata: ReadonlyMap<string, string>
}

const DTYPES: Partial<Record<TensorDtype, Dtype>> = { F32: 'f32', F16: 'f16', BF16: 'bf16' }

/**
 * Parses a whole frame; its tensors are views of `bytes` where alignment allows it.
 * @throws ParisError `bad_body` for a header or sizes that do not hold together, `bad_dtype`, `bad_shape` for the rank
 */
export function parseFrame(bytes: Uint8Array<ArrayBuffer>): Frame {
  return parse(bytes, false) as Frame
}

/** An answer's frame, which may hold U32 as well. @throws ParisError as `parseFrame` */
export function parseAnswer(bytes: Uint8Array<ArrayBuffer>): Frame<TensorInput | Uint32Array> {
  return parse(bytes, true)
}

function parse(bytes: Uint8Array<ArrayBuffer>, u32: boolean): Frame<TensorInput | Uint32Array> {
  let header: ReturnType<typeof parseHeader>
  try {
    const size = headerBytes(bytes.subarray(0, 8), FRAME.header, 'the body')
    if (8 + size > bytes.length)
      throw badBody(`a header of ${size} bytes in a body of ${bytes.length}`, 'a header within the body', FIX)
    header = parseHeader(bytes.subarray(8, 8 + size), 'the body')
  } catch (error) {
    if (error instanceof ParisError && error.code === 'snapshot_corrupt')
      throw badBody(error.got, error.want, FIX, error)
    throw error
  }
  const { tensors: entries, metadata, dataStart, dataBytes } = header
  if (entries.size > FRAME.tensors) throw badBody(`${entries.size} tensors`, `at most ${FRAME.tensors}`, FIX)
  if (dataStart + dataBytes !== bytes.length)
    throw badBody(`${bytes.length - dataStart} bytes of data`, `${dataBytes}, as the header says`, FIX)
  const tensors = new Map<string, WireTensor<TensorInput | Uint32Array>>()
  for (const [name, entry] of entries) tensors.set(name, wireTensor(bytes, dataStart, name, entry, u32))
  return { tensors, metadata }
}

function wireTensor(
  bytes: Uint8Array<ArrayBuffer>,
  dataStart: number,
  name: string,
  entry: TensorEntry,
  u32: boolean,
): WireTensor<TensorInput | Uint32Array> {
  const where = `the body(${name.slice(0, 60)})`
  const { shape, start, end } = entry
  if (shape.length < 1 || shape.length > FRAME.rank)
    throw new Refusal('bad_shape', { where, got: `rank ${shape.length}`, want: `1 to ${FRAME.rank}`, fix: FIX })
  const dtype = entry.dtype === 'U32' && u32 ? 'u32' : DTYPES[entry.dtype]
  if (!dtype) throw new Refusal('bad_dtype', { where, got: entry.dtype, want: 'F32, F16 or BF16', fix: FIX })
  const at = bytes.byteOffset + dataStart + start
  const size = dtype === 'f32' || dtype === 'u32' ? 4 : 2
  const count = (end - start) / size
  const [buffer, offset] =
    at % size === 0 ? [bytes.buffer, at] : [bytes.slice(dataStart + start, dataStart + end).buffer, 0]
  if (dtype === 'u32') return { shape, input: new Uint32Array(buffer, offset, count) }
  if (dtype === 'f32') return { shape, input: new Float32Array(buffer, offset, count) }
  return { shape, input: { dtype, data: new Uint16Array(buffer, offset, count) } }
}

/** One axis of a shape that a frame must have: a size, or a letter that stands for any, the same throughout. */
type Axis = number | 'T'

/**
 * The tensors of these names and of no others, in their shapes.
 * @returns their data, and T where it occurs
 * @throws ParisError `bad_body` for a missing or unknown name, `bad_shape`
 */
export function takeTensors<N extends string>(
  frame: Frame,
  shapes: Readonly<Record<N, readonly Axis[]>>,
): { inputs: Record<N, TensorInput>; tokens: number } {
  const wanted = Object.keys(shapes) as N[]
  for (const name of frame.tensors.keys())
    if (!wanted.includes(name as N))
      throw badBody(`a tensor ${JSON.stringify(name.slice(0, 60))}`, `${wanted.join(', ') || 'none'}`, FIX)
  let tokens: number | undefined
  const inputs = {} as Record<N, TensorInput>
  for (const name of wanted) {
    const tensor = frame.tensors.get(name)
    if (!tensor) throw badBody(`no tensor ${JSON.stringify(name)}`, wanted.join(', '), FIX)
    const want = shapes[name].map((axis) => (axis === 'T' ? (tokens ?? 'T') : axis))
    const fits = tensor.shape.length === want.length && want.every((n, i) => n === 'T' || n === tensor.shape[i])
    if (!fits)
      throw new Refusal('bad_shape', {
        where: `the body(${name})`,
        got: `[${tensor.shape.join(', ')}]`,
        want: `[${want.join(', ')}]`,
        fix: 'Keys and values are [H, T, d], queries [Hq, d], or [Hq, T, d] in a prefill.',
      })
    const axis = want.indexOf('T')
    if (axis >= 0) tokens = tensor.shape[axis]
    inputs[name] = tensor.input
  }
  return { inputs, tokens: tokens ?? 0 }
}

/** A tensor on its way out: F32 or U32 by its array, F16 or BF16 by its tag. */
export interface OutTensor {
  readonly name: string
  readonly shape: readonly number[]
  readonly data: TensorInput | Uint32Array
}

const TAGS: Record<Dtype, TensorDtype> = { f32: 'F32', f16: 'F16', bf16: 'BF16' }

/** A frame as bytes. */
export function buildFrame(
  tensors: readonly OutTensor[],
  metadata: Readonly<Record<string, string>> = {},
): Uint8Array<ArrayBuffer> {
  const parts = tensors.map(({ name, shape, data }) => {
    const array = 'data' in data ? data.data : data
    const dtype = 'data' in data ? TAGS[data.dtype] : data instanceof Uint32Array ? ('U32' as const) : ('F32' as const)
    return { name, shape, dtype, array }
  })
  const header = buildHeader(parts, metadata)
  const out = new Uint8Array(parts.reduce((sum, { array }) => sum + array.byteLength, header.length))
  out.set(header)
  let at = header.length
  for (const { array } of parts) {
    out.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at)
    at += array.byteLength
  }
  return out
}
