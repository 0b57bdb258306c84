import { bf16ToF32 } from '../../sdk/dtype.ts'
import { loadTensors } from '../support/tensors.ts'

/** Noise added to each copy of the captured keys, as a share of their own standard deviation. */
export const NOISE = 0.3

/** Keys of one KV head and the queries that ask for them, at any length: the captured keys again and again, with noise. */
export interface TiledKeys {
  readonly d: number
  /** Keys of one tile. */
  readonly tile: number
  /** Tile i, [tile, d] f32; the same for the same i. */
  keys(i: number): Float32Array
  /** [G, d] f32 of query position p. */
  queries(p: number): Float32Array
  readonly group: number
  readonly positions: number
}

/** @param d 128 for the capture as it is; less takes the first d coordinates */
export function tiledKeys(path: URL, d: number): TiledKeys {
  const file = loadTensors(path)
  const [, tile, width] = file.shape('keys')
  const [group, positions] = file.shape('queries')
  const narrow = (bits: Uint16Array, rows: number) =>
    Float32Array.from({ length: rows * d }, (_, i) => bf16ToF32(bits[Math.floor(i / d) * width + (i % d)]))
  const captured = narrow(file.get('keys', 'BF16'), tile)
  const queries = narrow(file.get('queries', 'BF16'), group * positions)
  const deviation = Math.sqrt(captured.reduce((sum, x) => sum + x * x, 0) / captured.length)
  const noise = gaussians(1 << 20, NOISE * deviation)
  return {
    d,
    tile,
    group,
    positions,
    keys(i) {
      const shift = (i * 40_503 + 12_345) % noise.length
      return i === 0 ? captured : captured.map((x, j) => x + noise[(j + shift) % noise.length])
    },
    queries(p) {
      const out = new Float32Array(group * d)
      for (let g = 0; g < group; g++)
        out.set(queries.subarray((g * positions + p) * d, (g * positions + p + 1) * d), g * d)
      return out
    },
  }
}

function gaussians(count: number, deviation: number): Float32Array {
  let state = 42
  const uniform = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return (state + 0.5) / 2 ** 32
  }
  return Float32Array.from(
    { length: count },
    () => deviation * Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()),
  )
}
