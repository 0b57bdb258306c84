import { readFileSync } from 'node:fs'
import { headerBytes, parseHeader } from '../../sdk/safetensors.ts'

/** Keys, values [1, N, d] and queries [4, P, d] that a trained model stored, as bf16 bits. */
export interface Capture {
  readonly keys: Uint16Array
  readonly values: Uint16Array
  readonly queries: Uint16Array
  readonly tokens: number
  readonly positions: number
  readonly headDim: number
  readonly queryHeads: number
}

/** The capture that comes with the package; see examples/data/README.md. */
export function loadCapture(file: URL = new URL('../data/needle-layer1.safetensors', import.meta.url)): Capture {
  const bytes = new Uint8Array(readFileSync(file))
  const header = parseHeader(bytes.subarray(8, 8 + headerBytes(bytes.subarray(0, 8))))
  const tensor = (name: string) => {
    const entry = header.tensors.get(name)
    if (entry?.dtype !== 'BF16') throw new Error(`${file.pathname} has no bf16 tensor ${name}`)
    return {
      shape: entry.shape,
      data: new Uint16Array(bytes.slice(header.dataStart + entry.start, header.dataStart + entry.end).buffer),
    }
  }
  const [keys, values, queries] = ['keys', 'values', 'queries'].map(tensor)
  return {
    keys: keys.data,
    values: values.data,
    queries: queries.data,
    tokens: keys.shape[1],
    headDim: keys.shape[2],
    queryHeads: queries.shape[0],
    positions: queries.shape[1],
  }
}

/** Tokens [from, to) of the capture as `append` takes them. */
export function tokensOf(capture: Capture, from: number, to: number) {
  const d = capture.headDim
  return {
    keys: { dtype: 'bf16' as const, data: capture.keys.subarray(from * d, to * d) },
    values: { dtype: 'bf16' as const, data: capture.values.subarray(from * d, to * d) },
  }
}

/** The queries [4, d] of the p-th captured position. */
export function queriesAt(capture: Capture, p: number) {
  const { headDim: d, positions, queryHeads } = capture
  const data = new Uint16Array(queryHeads * d)
  for (let g = 0; g < queryHeads; g++)
    data.set(capture.queries.subarray((g * positions + p) * d, (g * positions + p + 1) * d), g * d)
  return { dtype: 'bf16' as const, data }
}
