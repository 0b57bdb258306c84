import { Bytes } from '../../sdk/bytes.ts'
import { makeRotation, type Rotation, type Rows } from '../../sdk/codec/codec.ts'
import { seededSigns } from '../../sdk/codec/signs.ts'
import { type Dtype, dtypeBytes, fromF32 } from '../../sdk/dtype.ts'
import { paddedDim } from '../../sdk/shape.ts'

/** What stale memory looks like: a result left unwritten shows as this. */
export const POISON = 0xaa

/** Every head dimension that the kernels are tried with. */
export const HEAD_DIMS = [8, 16, 32, 64, 80, 96, 128, 192, 256] as const
export const DTYPES: readonly Dtype[] = ['f32', 'f16', 'bf16']

/** A seeded uniform generator on [0, 1): mulberry32. */
export function random(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let z = Math.imul(state ^ (state >>> 15), state | 1)
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61)
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32
  }
}

/** A standard normal draw (Box–Muller). */
export function gaussian(next: () => number): number {
  return Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next())
}

/** `count` independent normal draws. */
export function gaussians(next: () => number, count: number, deviation = 1): Float32Array {
  return Float32Array.from({ length: count }, () => gaussian(next) * deviation)
}

/** A whole number in [lo, hi]. */
export function integer(next: () => number, lo: number, hi: number): number {
  return lo + Math.floor(next() * (hi - lo + 1))
}

/** Memory of `bytes` bytes that holds no result yet. */
export function poisoned(bytes: number): Bytes {
  const out = new Bytes(bytes)
  out.u8.fill(POISON)
  return out
}

/** `count` distinct ids below `below`, ascending. */
export function pick(next: () => number, below: number, count: number): Uint32Array {
  const ids = Uint32Array.from({ length: below }, (_, i) => i)
  for (let i = 0; i < count; i++) {
    const j = integer(next, i, below - 1)
    ;[ids[i], ids[j]] = [ids[j], ids[i]]
  }
  return ids.slice(0, count).sort()
}

/** Keys as a model makes them: a strong mean common to all, a few clusters, lengths from .3 to 3. [H, N, d] */
export function clusteredKeys(seed: number, heads: number, count: number, d: number): Float32Array {
  const next = random(seed)
  const keys = new Float32Array(heads * count * d)
  for (let h = 0; h < heads; h++) {
    const mean = gaussians(next, d, 1.5)
    const clusters = Array.from({ length: 5 }, () => gaussians(next, d))
    for (let n = 0; n < count; n++) {
      const cluster = clusters[integer(next, 0, 4)]
      const length = 0.3 * 10 ** next()
      for (let j = 0; j < d; j++) keys[(h * count + n) * d + j] = length * (mean[j] + cluster[j] + gaussian(next) * 0.7)
    }
  }
  return keys
}

/** Valid keys that break careless code, each [d]. */
export function adversarialKeys(seed: number, d: number): Float32Array[] {
  const next = random(seed)
  const draw = gaussians(next, d)
  const of = (value: (j: number) => number) => Float32Array.from({ length: d }, (_, j) => value(j))
  return [
    of(() => 0),
    of(() => -0),
    draw,
    draw,
    of(() => 1),
    of(() => -1),
    of(() => (next() < 0.5 ? -1 : 1)),
    of((j) => draw[j] * 1e30),
    of((j) => draw[j] * 1e-30),
    of((j) => Math.sign(draw[j]) * 3e38),
    of((j) => Math.sign(draw[j]) * 1.2e-38),
    of((j) => draw[j] * 1e-40),
    of((j) => (j % 3 === 0 ? -0 : draw[j])),
    of((j) => (j === d - 1 ? -2.5 : 0)),
    of((j) => (j === 0 ? 1 : draw[j] * 2 ** -60)),
    of((j) => (j % 2 === 0 ? draw[j] : draw[j] * 1e-7)),
  ]
}

/** Clustered keys whose last ones, in every head, are the adversarial ones (as many as fit). [H, N, d] */
export function mixedKeys(seed: number, heads: number, count: number, d: number): Float32Array {
  const keys = clusteredKeys(seed, heads, count, d)
  const hard = adversarialKeys(seed + 1, d).slice(0, count)
  for (let h = 0; h < heads; h++)
    hard.forEach((key, i) => {
      keys.set(key, ((h + 1) * count - hard.length + i) * d)
    })
  return keys
}

const LARGEST: Record<Dtype, number> = { f32: 3.4028234663852886e38, f16: 65504, bf16: 3.3895313892515355e38 }

/**
 * [H, N, d] values as a store holds them, `spare` rows of stale memory after each head.
 * Values beyond the largest finite one of the type become that one.
 */
export function rowsOf(values: Float32Array, heads: number, d: number, dtype: Dtype, spare = 0): Rows<Bytes> {
  const count = values.length / (heads * d)
  const cap = count + spare
  const buf = poisoned(heads * cap * d * dtypeBytes(dtype))
  const out = dtype === 'f32' ? buf.f32 : buf.u16
  const top = LARGEST[dtype]
  for (let h = 0; h < heads; h++)
    for (let i = 0; i < count * d; i++)
      out[h * cap * d + i] = fromF32(dtype, Math.max(-top, Math.min(top, values[h * count * d + i])))
  return { buf, dtype, cap, d }
}

/** The rotation of a seed. */
export function rotationOf(d: number, seed = 42): Rotation<Bytes> {
  return makeRotation(d, Bytes.of(seededSigns(seed, paddedDim(d))))
}
