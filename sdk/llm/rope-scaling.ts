import { describe } from '../errors.ts'
import { badModel } from './source.ts'

/** How positions turn into angles. */
export interface Rope {
  /** Base of the angles' geometric series. */
  readonly theta: number
  /** Radians a position, of each pair (j, j + d/2); d/2 of them. */
  readonly frequencies: Float64Array
  /** Multiplies every cosine and sine (yarn), 1 elsewhere. */
  readonly attention: number
}

type Json = Readonly<Record<string, unknown>>

/**
 * Reads `rope_parameters` (newer folders) or `rope_theta` with `rope_scaling` (older ones). Known types: default, linear,
 * llama3, yarn.
 * @param config config.json
 * @param d head dimension
 * @throws ParisError `bad_model` for another type or a parameter that is missing
 */
export function parseRope(config: Json, d: number, maxPositions: number): Rope {
  const scaling = asObject(config.rope_parameters) ?? asObject(config.rope_scaling) ?? {}
  const type = scaling.rope_type ?? scaling.type ?? 'default'
  const theta = positive(scaling.rope_theta ?? config.rope_theta ?? 10_000, 'rope_theta')
  const partial = scaling.partial_rotary_factor ?? config.partial_rotary_factor ?? 1
  if (partial !== 1) throw unknown(`partial_rotary_factor ${describe(partial)}`)
  const plain = Float64Array.from({ length: d / 2 }, (_, j) => theta ** ((-2 * j) / d))
  if (type === 'default') return { theta, frequencies: plain, attention: 1 }
  if (type !== 'linear' && type !== 'llama3' && type !== 'yarn') throw unknown(`rope type ${describe(type)}`)
  const factor = positive(scaling.factor, 'rope factor')
  if (type === 'linear') return { theta, frequencies: plain.map((f) => f / factor), attention: 1 }
  if (type === 'llama3') return { theta, frequencies: llama3(plain, factor, scaling), attention: 1 }
  return yarn(plain, theta, factor, scaling, maxPositions)
}

/** Long waves slow down by the factor, short ones stay, and between the two bounds the share goes over evenly. */
function llama3(plain: Float64Array, factor: number, scaling: Json): Float64Array {
  const low = positive(scaling.low_freq_factor, 'low_freq_factor')
  const high = positive(scaling.high_freq_factor, 'high_freq_factor')
  const original = positive(scaling.original_max_position_embeddings, 'original_max_position_embeddings')
  return plain.map((f) => {
    const turns = (original * f) / (2 * Math.PI)
    if (turns > high) return f
    if (turns < low) return f / factor
    const share = (turns - low) / (high - low)
    return ((1 - share) * f) / factor + share * f
  })
}

/** Pairs that turn less than `beta_slow` times in the original length slow down, those above `beta_fast` stay. */
function yarn(plain: Float64Array, theta: number, factor: number, scaling: Json, maxPositions: number): Rope {
  const half = plain.length
  const original = positive(
    scaling.original_max_position_embeddings ?? maxPositions,
    'original_max_position_embeddings',
  )
  const pairOf = (turns: number) => (half * Math.log(original / (turns * 2 * Math.PI))) / Math.log(theta)
  const [fast, slow] = [
    pairOf(positive(scaling.beta_fast ?? 32, 'beta_fast')),
    pairOf(positive(scaling.beta_slow ?? 1, 'beta_slow')),
  ]
  const whole = scaling.truncate !== false
  const from = Math.max(0, whole ? Math.floor(fast) : fast)
  const to = Math.min(2 * half - 1, whole ? Math.ceil(slow) : slow)
  const frequencies = plain.map((f, j) => {
    const slowed = Math.min(1, Math.max(0, (j - from) / Math.max(0.001, to - from)))
    return (f / factor) * slowed + f * (1 - slowed)
  })
  const mscale = (by: number) => (factor <= 1 ? 1 : 0.1 * by * Math.log(factor) + 1)
  const { mscale: own, mscale_all_dim: all } = scaling
  const scaled = typeof own === 'number' && typeof all === 'number' ? mscale(own) / mscale(all) : mscale(1)
  const attention = scaling.attention_factor ?? scaled
  return { theta, frequencies, attention: positive(attention, 'attention_factor') }
}

/**
 * Table rows for the given positions: f32 [positions, d], cosines of d/2 pairs, then their sines; angles in f64.
 */
export function ropeTable({ frequencies, attention }: Rope, positions: readonly number[]): Float32Array<ArrayBuffer> {
  const half = frequencies.length
  const table = new Float32Array(positions.length * 2 * half)
  positions.forEach((position, t) => {
    const at = t * 2 * half
    for (let j = 0; j < half; j++) {
      const angle = position * frequencies[j]
      table[at + j] = Math.cos(angle) * attention
      table[at + half + j] = Math.sin(angle) * attention
    }
  })
  return table
}

function asObject(value: unknown): Json | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : undefined
}

function positive(value: unknown, name: string): number {
  if (typeof value === 'number' && Number.isFinite(value) && value > 0) return value
  throw badModel(
    'config.json',
    `${name} ${describe(value)}`,
    'a number above 0',
    'Take config.json from its source again.',
  )
}

function unknown(got: string) {
  const want = 'default, linear, llama3 or yarn over the whole head'
  return badModel('config.json', got, want, 'Take a model whose positions are of one of these kinds.')
}
