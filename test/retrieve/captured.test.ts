import { existsSync } from 'node:fs'
import { expect, it } from 'vitest'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { loadTensors } from '../support/tensors.ts'

const CUT = new URL('../../examples/data/needle-layer1.safetensors', import.meta.url)
const present = existsSync(CUT)
if (!present) console.log(`captured keys: skipped, ${CUT.pathname} is not there`)

const [TOKENS, D, G] = [4096, 128, 4]

/** A session over the whole cut on one engine, and the queries [G, D] of a captured position. */
async function openCapture(engine: Engine, policy: PolicyOptions) {
  const file = loadTensors(CUT)
  const bf16 = (name: string) => ({ dtype: 'bf16' as const, data: file.get(name, 'BF16') })
  const shape = { layers: 1, queryHeads: G, kvHeads: 1, headDim: D, capacity: TOKENS }
  const session = await engine.createSession({ ...shape, policy: { sink: 4, local: 64, denseBelow: 0, ...policy } })
  await session.append(0, { keys: bf16('keys'), values: bf16('values') })
  const { data } = bf16('queries')
  const queriesAt = (p: number) => ({
    dtype: 'bf16' as const,
    data: Uint16Array.from({ length: G * D }, (_, i) => data[(Math.floor(i / D) * 256 + p) * D + (i % D)]),
  })
  return { session, queriesAt }
}

onEveryBackend(`captured keys${present ? '' : ' (skipped: the cut is not there)'}`, (backend) => {
  it.skipIf(!present).each<PolicyOptions>([{ coarse: 'signs' }, { coarse: 'collision' }, { group: 'max' }])(
    'give what they give on the reference: %j',
    async (policy) => {
      const [own, reference] = [new Engine(backend()), new Engine(createReferenceBackend())]
      const [got, want] = [await openCapture(own, policy), await openCapture(reference, policy)]
      for (const p of [0, 100, 255]) {
        const queries = got.queriesAt(p)
        const [a, b] = [await got.session.retrieve(0, { queries }), await want.session.retrieve(0, { queries })]
        // Estimates of near-ties may come out in another order, and the hundredth may be another of them.
        const scale = Math.abs(b.scores[0]) * 1e-4
        a.scores.forEach((score, i) => expect(Math.abs(score - b.scores[i]), `score ${i}`).toBeLessThan(scale))
        const common = [...a.indices].filter((n) => b.indices.includes(n)).length
        expect(common).toBeGreaterThanOrEqual(99)
        const [x, y] = [await got.session.attend(0, { queries }), await want.session.attend(0, { queries })]
        x.output.forEach((v, i) => expect(Math.abs(v - y.output[i]), `output ${i}`).toBeLessThan(2e-3))
        x.lse.forEach((v, i) => expect(Math.abs(v - y.lse[i]), `lse ${i}`).toBeLessThan(1e-3))
      }
      await got.session.dispose()
      await reference.dispose()
    },
  )
})
