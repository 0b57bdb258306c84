import { readFileSync } from 'node:fs'
import { headerBytes, parseHeader, type TensorDtype } from '../../sdk/safetensors.ts'

const ARRAYS = {
  F32: Float32Array,
  F16: Uint16Array,
  BF16: Uint16Array,
  I32: Int32Array,
  U32: Uint32Array,
  I8: Int8Array,
  U8: Uint8Array,
} as const

type ArrayOf<D extends TensorDtype> = InstanceType<(typeof ARRAYS)[D]>

/** A whole safetensors file in memory. */
export interface TensorFile {
  readonly metadata: ReadonlyMap<string, string>
  shape(name: string): readonly number[]
  /** A copy of a tensor; throws unless it has that dtype. */
  get<D extends TensorDtype>(name: string, dtype: D): ArrayOf<D>
}

/** Loads a safetensors file that fits in memory. */
export function loadTensors(path: string | URL): TensorFile {
  const file = new Uint8Array(readFileSync(path))
  const size = headerBytes(file.subarray(0, 8))
  const header = parseHeader(file.subarray(8, 8 + size))
  const entry = (name: string) => {
    const found = header.tensors.get(name)
    if (!found) throw new Error(`${path} has no tensor ${name}`)
    return found
  }
  return {
    metadata: header.metadata,
    shape: (name) => entry(name).shape,
    get(name, dtype) {
      const { dtype: have, start, end } = entry(name)
      if (have !== dtype) throw new Error(`${name} is ${have}, not ${dtype}`)
      const bytes = file.slice(header.dataStart + start, header.dataStart + end)
      return new ARRAYS[dtype](bytes.buffer) as ArrayOf<typeof dtype>
    },
  }
}
