import type { Engine } from '../engine.ts'
import { BackendUnavailable } from '../errors.ts'

const N = 96
const D = 16
const HEADS = { layers: 1, queryHeads: 2, kvHeads: 1, headDim: D, capacity: N, store: 'f32' } as const

/** Numbers in [−1, 1], spread by the golden ratio. */
function numbers(count: number, phase: number): Float32Array {
  return Float32Array.from({ length: count }, (_, i) => Math.sin(phase + i * 1.61803398875))
}

/**
 * Appends, retrieves and attends on a small session, with every key of its retrieval zone retrieved, and compares with
 * softmax attention by its definition. It runs every kernel of a decode step once, so that their pipelines are compiled.
 * @throws BackendUnavailable where the engine computes something else
 */
export async function goldenCheck(engine: Engine): Promise<void> {
  const [keys, values, queries] = [numbers(N * D, 1), numbers(N * D, 2), numbers(2 * D, 3)]
  for (const k of [8, 80]) {
    const policy = { k, sink: 4, local: 8, update: 4, denseBelow: 0 }
    const session = await engine.createSession({ ...HEADS, policy })
    try {
      await session.append(0, { keys, values })
      const { indices } = await session.retrieve(0, { queries, k: N })
      if (new Set(indices).size !== N - 12) throw wrong(engine, `${new Set(indices).size} keys of ${N - 12}`)
      const { output, lse } = await session.attend(0, { queries })
      if (!output.every(Number.isFinite)) throw wrong(engine, 'an output that is not finite')
      const { output: whole, lse: wholeLse } =
        k < 80 ? await session.attendRange(0, { queries, from: 0, to: N }) : { output, lse }
      checkExact(engine, { keys, values, queries }, whole, wholeLse)
    } finally {
      await session.dispose()
    }
  }
}

function checkExact(
  engine: Engine,
  { keys, values, queries }: Record<'keys' | 'values' | 'queries', Float32Array>,
  output: Float32Array,
  lse: Float32Array,
): void {
  for (let q = 0; q < 2; q++) {
    const weights = Array.from({ length: N }, (_, n) => {
      let dot = 0
      for (let j = 0; j < D; j++) dot += keys[n * D + j] * queries[q * D + j]
      return Math.exp(dot / Math.sqrt(D))
    })
    const sum = weights.reduce((a, b) => a + b, 0)
    if (!(Math.abs(lse[q] - Math.log(sum)) < 1e-3)) throw wrong(engine, `lse ${lse[q]} for ${Math.log(sum)}`)
    for (let j = 0; j < D; j++) {
      const want = weights.reduce((total, w, n) => total + (w / sum) * values[n * D + j], 0)
      if (!(Math.abs(output[q * D + j] - want) < 1e-3)) throw wrong(engine, `${output[q * D + j]} for ${want}`)
    }
  }
}

function wrong(engine: Engine, got: string): BackendUnavailable {
  const fix = 'Take another device; report this one with its driver.'
  return new BackendUnavailable(engine.info.backend, `the golden check got ${got}`, fix)
}
