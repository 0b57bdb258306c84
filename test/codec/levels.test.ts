import { describe, expect, it } from 'vitest'
import { LEVELS, lloydMax } from '../../sdk/codec/levels.ts'
import { gaussians, random } from '../support/inputs.ts'
import { expectNear } from '../support/repeat.ts'

/** Centers computed in 25 digits by another program, from the incomplete beta function. */
const CENTERS: Record<number, readonly number[]> = {
  4: [
    0.05637621600263709, 0.1693694459750411, 0.2831117639874642, 0.3982014499078328, 0.5154282689076208,
    0.6359815937337611, 0.7620006971645726, 0.8987414291320842,
  ],
  8: [
    0.04250866710527857, 0.1280436505971656, 0.2152012184876753, 0.3053238204358631, 0.4002712711400554,
    0.5030220634852152, 0.6193476458928073, 0.7648350836701889,
  ],
  16: [
    0.03106341569398519, 0.09371635121956402, 0.1580256308979819, 0.2253894561049557, 0.2977976597993589,
    0.3785456298958212, 0.4742805316569158, 0.6038946700775059,
  ],
}

/** E[|u_j|] given lo ≤ |u_j| ≤ hi: composite Simpson in θ, where x = sin θ and the density is cos^(m−2) θ. */
function conditionalMean(m: number, lo: number, hi: number): number {
  const [a, b, steps] = [Math.asin(lo), Math.asin(hi), 4000]
  let [mass, moment] = [0, 0]
  for (let i = 0; i <= steps; i++) {
    const theta = a + ((b - a) * i) / steps
    const w = (i === 0 || i === steps ? 1 : i % 2 ? 4 : 2) * Math.cos(theta) ** (m - 2)
    mass += w
    moment += w * Math.sin(theta)
  }
  return moment / mass
}

describe.each([4, 8, 16])('Lloyd–Max levels for m = %i', (m) => {
  const { thresholds, centers } = lloydMax(m)

  it('are ascending and lie inside their cells', () => {
    expect([thresholds.length, centers.length]).toEqual([7, 8])
    const all = centers.flatMap((c, i) => (i < 7 ? [c, thresholds[i]] : [c]))
    expect(all).toEqual(all.toSorted((a, b) => a - b))
    expect(all[0]).toBeGreaterThan(0)
    expect(all[14]).toBeLessThan(1)
  })

  it('have every threshold midway and every center at the mean of its cell', () => {
    const edges = [0, ...thresholds, 1]
    thresholds.forEach((t, i) => {
      expect(Math.abs(t - (centers[i] + centers[i + 1]) / 2)).toBeLessThan(1e-15)
    })
    const means = centers.map((_, i) => conditionalMean(m, edges[i], edges[i + 1]))
    expectNear(centers, means, 1e-10, 'center')
  })

  it('are the golden ones', () => {
    expectNear(centers, CENTERS[m], 1e-12, 'center')
  })

  it('fit directions drawn at random better than levels that are a little off', () => {
    const next = random(m)
    const draws: number[] = []
    for (let i = 0; i < 4000; i++) {
      const u = gaussians(next, m)
      draws.push(...u.map((v) => Math.abs(v) / Math.hypot(...u)))
    }
    const loss = (stretch: number) =>
      draws.reduce((sum, v) => sum + Math.min(...centers.map((c) => (v - c * stretch) ** 2)), 0)
    expect(loss(1)).toBeLessThan(loss(1.05))
    expect(loss(1)).toBeLessThan(loss(0.95))
  })
})

it('the stored levels are those of m = 8', () => {
  const { thresholds, centers } = lloydMax(8)
  expectNear(LEVELS.thresholds, thresholds, 1e-12, 'threshold')
  expectNear(LEVELS.centers, centers, 1e-12, 'center')
})

it('other counts of levels work: one level is the mean', () => {
  expect(lloydMax(4, 1).centers[0]).toBeCloseTo(4 / (3 * Math.PI), 12)
  expect(lloydMax(3, 2).centers).toEqual([expect.closeTo(0.25, 12), expect.closeTo(0.75, 12)])
})
