import type { Sequence } from './sessions.ts'

/** Inner product of one key with one query, in f64. */
function product(keys: Float32Array, at: number, queries: ArrayLike<number>, q: number, d: number): number {
  let sum = 0
  for (let j = 0; j < d; j++) sum += keys[at + j] * queries[q + j]
  return sum
}

/** Positions 0..n − 1. */
export function upTo(n: number): number[] {
  return Array.from({ length: n }, (_, i) => i)
}

/**
 * Softmax attention by its definition, in f64: query head i reads KV head floor(i / G).
 * @param queries [Hq, d]
 * @param positions attended by each KV head, or by all
 */
export function exactAttention(
  { keys, values, n, d }: Sequence,
  queries: Float32Array,
  positions: readonly number[] | readonly number[][],
  scale = 1 / Math.sqrt(d),
): { output: number[]; lse: number[] } {
  const [heads, queryHeads] = [keys.length / (n * d), queries.length / d]
  const output: number[] = []
  const lse: number[] = []
  for (let hq = 0; hq < queryHeads; hq++) {
    const h = Math.floor((hq * heads) / queryHeads)
    const own = Array.isArray(positions[0]) ? (positions as number[][])[h] : (positions as number[])
    const scores = own.map((p) => product(keys, (h * n + p) * d, queries, hq * d, d) * scale)
    const max = Math.max(...scores)
    const sum = scores.reduce((total, s) => total + Math.exp(s - max), 0)
    lse.push(own.length === 0 ? Number.NEGATIVE_INFINITY : max + Math.log(sum))
    for (let j = 0; j < d; j++)
      output.push(own.reduce((o, p, i) => o + (Math.exp(scores[i] - max) / sum) * values[(h * n + p) * d + j], 0))
  }
  return { output, lse }
}

/** What chooses keys: ⟨k, mean of the group's queries⟩ or the best of the group's products. [H, n] of f64 */
export function exactScores(
  { keys, n, d }: Sequence,
  queries: Float32Array,
  kind: 'mean' | 'max' = 'mean',
): Float64Array[] {
  const heads = keys.length / (n * d)
  const group = queries.length / d / heads
  return Array.from({ length: heads }, (_, h) =>
    Float64Array.from({ length: n }, (_, p) => {
      const each = upTo(group).map((g) => product(keys, (h * n + p) * d, queries, (h * group + g) * d, d))
      return kind === 'max' ? Math.max(...each) : each.reduce((a, b) => a + b, 0) / group
    }),
  )
}

/** The K best positions of [from, to) for every KV head, best first, ties to the lower. */
export function exactBest(scores: readonly Float64Array[], from: number, to: number, k: number): number[][] {
  return scores.map((s) =>
    upTo(to - from)
      .map((i) => from + i)
      .sort((a, b) => s[b] - s[a] || a - b)
      .slice(0, k),
  )
}

/** Share of the wanted positions that were found, mean over heads. */
export function shareFound(indices: Uint32Array, want: readonly number[][]): number {
  const k = indices.length / want.length
  const found = want.map((list, h) => {
    const got = new Set(indices.subarray(h * k, (h + 1) * k))
    return list.filter((p) => got.has(p)).length / list.length
  })
  return found.reduce((a, b) => a + b, 0) / found.length
}
