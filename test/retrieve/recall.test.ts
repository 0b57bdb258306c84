import { existsSync } from 'node:fs'
import { expect, it } from 'vitest'
import { loadCapture, measureRecall, type Selector } from '../support/recall.ts'

const CUT = new URL('../../examples/data/needle-layer1.safetensors', import.meta.url)

/** Selectors with the least recall: the mean over 8 seeds less three standard deviations. */
const FLOORS: readonly (Selector & { readonly least: number })[] = [
  { name: 'collision 10%', coarse: 'collision', beta: 0.1, least: 0.738 },
  { name: 'signs 5%', coarse: 'signs', beta: 0.05, least: 0.732 },
  { name: 'signs 10%', coarse: 'signs', beta: 0.1, least: 0.864 },
  { name: 'signs 25%', coarse: 'signs', beta: 0.25, least: 0.944 },
  { name: 'signs 5%, normWeighted', coarse: 'signs', beta: 0.05, normWeighted: true, least: 0.766 },
  { name: 'RSQ-IP over every key', coarse: 'signs', beta: 1, least: 0.948 },
]

const absent = existsSync(CUT) ? '' : ` (skipped: ${CUT.pathname} is not there)`
if (absent) console.log(`recall${absent}`)

it.skipIf(absent)(`finds the keys that matter on captured keys${absent}`, () => {
  const recalls = measureRecall({
    capture: loadCapture(CUT),
    zone: [16, 3584],
    k: 100,
    rho: 0.2,
    positions: Array.from({ length: 18 }, (_, i) => 15 * i),
    seeds: [1, 2],
    selectors: FLOORS,
  })
  FLOORS.forEach(({ name, least }, i) => {
    expect(recalls[i].mean, name).toBeGreaterThan(least)
    expect(recalls[i].mean, name).toBeLessThanOrEqual(1)
  })
})
