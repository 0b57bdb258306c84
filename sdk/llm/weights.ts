import type { Backend, Buf } from '../backend.ts'
import { type CallOptions, Pace } from '../calls.ts'
import { type Dtype, dtypeBytes, toF32 } from '../dtype.ts'
import type { ModelConfig } from './config.ts'
import { readTensors, type StoredTensor } from './folder.ts'
import { badModel, type ModelSource } from './source.ts'
import { findWeight, type LayerPart, layerPlan, outerPlan, type WeightSpec } from './weight-plan.ts'

/** A weight on the backend: a matrix as stored, or a vector widened to f32. */
export interface Weight {
  readonly buf: Buf
  readonly dtype: Dtype
}

/** One layer's weights. */
export type LayerWeights = Partial<Record<LayerPart, Weight>>

/** All weights of a decoder. */
export interface Weights {
  readonly embedding: Weight
  readonly norm: Weight
  /** The embedding itself where it is tied. */
  readonly head: Weight
  readonly layers: readonly LayerWeights[]
  /** Bytes on the backend. */
  readonly bytes: number
  readonly buffers: readonly Buf[]
}

/** Bytes that are read and uploaded at once. */
const PIECE = 1 << 24

/**
 * Reads a folder's weights onto a backend: matrices in the dtype that they are stored in, vectors widened to f32.
 * @param options progress in bytes; an abort frees what was taken
 * @throws ParisError `bad_model`, `out_of_memory`, `aborted`
 */
export async function loadWeights(
  backend: Backend,
  source: ModelSource,
  config: ModelConfig,
  options: CallOptions = {},
): Promise<Weights> {
  const stored = await readTensors(source)
  const outer = outerPlan(config)
  const plans = Array.from({ length: config.layers }, (_, l) => layerPlan(config, l))
  const { embedding, norm, head } = outer
  const specs = [embedding, norm, ...(head ? [head] : []), ...plans.flatMap((plan) => plan.map(([, spec]) => spec))]
  const found = specs.map((spec) => ({ spec, ...findWeight(stored, spec) }))
  const requests = found.map(({ spec, dtype }) => {
    return {
      label: spec.name,
      bytes: elements(spec) * (isVector(spec) ? 4 : dtypeBytes(dtype)),
      together: spec.together,
    }
  })
  const total = found.reduce((sum, { tensor }) => sum + tensor.end - tensor.start, 0)
  const pace = new Pace('loadModel', total, 'bytes', options)
  const buffers = await backend.alloc(requests)
  try {
    let done = 0
    for (const [i, { spec, tensor, dtype }] of found.entries())
      await upload(backend, source, tensor, dtype, isVector(spec), buffers[i], async (bytes) => {
        done += bytes
        await pace.step(done)
      })
  } catch (error) {
    backend.free(buffers)
    throw error
  }
  const placed = new Map(
    found.map(({ spec, dtype }, i) => [
      spec.name,
      { buf: buffers[i], dtype: isVector(spec) ? ('f32' as const) : dtype },
    ]),
  )
  const weight = (spec: WeightSpec) => placed.get(spec.name)!
  return {
    embedding: weight(embedding),
    norm: weight(norm),
    head: weight(head ?? embedding),
    layers: plans.map((plan) => Object.fromEntries(plan.map(([part, spec]) => [part, weight(spec)]))),
    bytes: buffers.reduce((sum, { bytes }) => sum + bytes, 0),
    buffers,
  }
}

const elements = ({ shape }: WeightSpec) => shape.reduce((product, size) => product * size, 1)
const isVector = ({ shape }: WeightSpec) => shape.length === 1

/**
 * @param widen to f32, as vectors are
 * @throws ParisError `bad_model` at a value that is not finite
 */
async function upload(
  backend: Backend,
  source: ModelSource,
  { file, name, at, start, end }: StoredTensor,
  dtype: Dtype,
  widen: boolean,
  buf: Buf,
  step: (bytes: number) => Promise<void>,
): Promise<void> {
  const size = end - start
  for (let from = 0; from < size; from += PIECE) {
    const to = Math.min(size, from + PIECE)
    const bytes = await source.read(file, at + from, at + to)
    const bad = notFinite(bytes, dtype)
    if (bad >= 0) {
      const got = `${name} with a value that is not finite, element ${from / dtypeBytes(dtype) + bad}`
      throw badModel(file, got, 'finite weights', 'Take the file from its source again.')
    }
    const scale = widen ? 4 / dtypeBytes(dtype) : 1
    backend.write(buf, from * scale, widen ? widened(bytes, dtype) : bytes)
    await step(to - from)
  }
}

/** Exponent bits: all of them set in Inf and NaN alone. */
const EXPONENT = { f32: 0x7f800000, f16: 0x7c00, bf16: 0x7f80 } as const

/** The first element that is Inf or NaN, -1 where all are finite. */
function notFinite(bytes: Uint8Array, dtype: Dtype): number {
  const mask = EXPONENT[dtype]
  const { buffer, byteOffset, byteLength } = bytes.byteOffset % 4 === 0 ? bytes : bytes.slice()
  const count = byteLength / dtypeBytes(dtype)
  const bits = dtype === 'f32' ? new Uint32Array(buffer, byteOffset, count) : new Uint16Array(buffer, byteOffset, count)
  for (let i = 0; i < bits.length; i++) if ((bits[i] & mask) === mask) return i
  return -1
}

function widened(bytes: Uint8Array, dtype: Dtype): Uint8Array {
  const { buffer } = bytes.slice()
  const given = dtype === 'f32' ? new Float32Array(buffer) : new Uint16Array(buffer)
  const wide = new Float32Array(given.length)
  toF32(dtype, given, 0, given.length, wide)
  return new Uint8Array(wide.buffer)
}
