import { z } from 'zod'
import { describe, ParisError } from '../errors.ts'

/** How the next token is chosen. */
export interface SamplingOptions {
  /** 0 takes the likeliest; 1 draws as the model says. By default as generation_config.json says, else 0. */
  readonly temperature?: number
  /** Draws among so many of the likeliest; 0, the default, among all. */
  readonly topK?: number
  /** Draws among the fewest likeliest that hold this probability together, above 0 to 1, by default 1. */
  readonly topP?: number
  /** u32, by default 42: the same seed draws the same tokens. */
  readonly seed?: number
}

const schema = z.strictObject({
  temperature: z.number().min(0).max(100).default(0),
  topK: z.number().int().min(0).default(0),
  topP: z.number().gt(0).max(1).default(1),
  seed: z.number().int().min(0).max(0xffffffff).default(42),
})

/** Chooses tokens from logits; deterministic for a seed. */
export class Sampler {
  private readonly options: z.output<typeof schema>
  private state: number

  /** @throws ParisError `bad_config` naming the field */
  constructor(options: SamplingOptions = {}) {
    const parsed = schema.safeParse(options)
    if (!parsed.success) {
      const { path, message } = parsed.error.issues[0]
      throw new ParisError('bad_config', {
        where: `generate(${path.join('.') || 'options'})`,
        got: describe((options as Record<string, unknown> | null)?.[String(path[0])]),
        want: message,
        fix: 'See SamplingOptions for every field, its range and its default.',
      })
    }
    this.options = parsed.data
    this.state = this.options.seed
  }

  /**
   * @param logits [V] f32
   * @returns the token; at temperature 0 the likeliest, the lower id of equals
   * @throws ParisError `not_finite` where no choice can be made
   */
  sample(logits: Float32Array): number {
    const best = greedy(logits)
    if (!Number.isFinite(logits[best])) throw notFinite(logits[best])
    const { temperature, topK, topP } = this.options
    if (temperature === 0 || topK === 1) return best
    const weights = Float64Array.from(logits, (x) => Math.exp((x - logits[best]) / temperature))
    let ids = topK > 0 && topK < logits.length ? likeliest(logits, topK) : undefined
    if (topP < 1) ids = nucleus(weights, topP, ids)
    return this.draw(weights, ids)
  }

  private draw(weights: Float64Array, ids: ArrayLike<number> | undefined): number {
    const count = ids?.length ?? weights.length
    const id = (i: number) => (ids ? ids[i] : i)
    let sum = 0
    for (let i = 0; i < count; i++) sum += weights[id(i)]
    let left = this.uniform() * sum
    let last = id(0)
    for (let i = 0; i < count; i++) {
      const weight = weights[id(i)]
      if (weight > 0) last = id(i)
      left -= weight
      if (left < 0) break
    }
    return last
  }

  /** Uniform in [0, 1) with 53 bits: two outputs of SplitMix32. */
  private uniform(): number {
    const [high, low] = [this.next() >>> 5, this.next() >>> 6]
    return (high * 2 ** 26 + low) / 2 ** 53
  }

  private next(): number {
    this.state = (this.state + 0x9e3779b9) >>> 0
    let z = this.state
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b)
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35)
    return (z ^ (z >>> 16)) >>> 0
  }
}

/** The largest logit's id, the lower of equals; that of a NaN where there is one. */
export function greedy(logits: Float32Array): number {
  let best = 0
  let top = Number.NEGATIVE_INFINITY
  for (let i = 0; i < logits.length; i++) {
    const value = logits[i]
    // One comparison an id: a NaN is not at most anything.
    if (value <= top) continue
    if (Number.isNaN(value)) return i
    top = value
    best = i
  }
  return best
}

/** The k largest, best first, the lower id of equals before the other. */
function likeliest(logits: Float32Array, k: number): number[] {
  const top: number[] = []
  for (let id = 0; id < logits.length; id++) {
    if (top.length === k && !(logits[id] > logits[top[k - 1]])) continue
    let [from, to] = [0, top.length]
    while (from < to) {
      const middle = (from + to) >> 1
      if (logits[top[middle]] >= logits[id]) from = middle + 1
      else to = middle
    }
    top.splice(from, 0, id)
    if (top.length > k) top.pop()
  }
  return top
}

/** The fewest of `ids` (all by default), likeliest first, that hold the share `p` of their weight. */
function nucleus(weights: Float64Array, p: number, ids: readonly number[] | undefined): number[] {
  const all = ids ?? Array.from(weights, (_, id) => id)
  const sum = all.reduce((total, id) => total + weights[id], 0)
  // All that lie below this hold less than 1 − p together, so the nucleus does without them.
  const least = ((1 - p) * sum) / all.length
  const sorted = all.filter((id) => weights[id] >= least).sort((a, b) => weights[b] - weights[a] || a - b)
  let held = 0
  const end = sorted.findIndex((id) => {
    held += weights[id]
    return held >= p * sum
  })
  return end < 0 ? sorted : sorted.slice(0, end + 1)
}

function notFinite(value: number): ParisError {
  return new ParisError('not_finite', {
    where: 'logits',
    got: String(value),
    want: 'finite numbers',
    fix: 'Check the weights: a damaged file or an overflow in half precision gives this.',
  })
}
