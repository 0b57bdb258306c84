import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { candidateCount, candidateRatio, collisionRatio, mostCandidates } from '../../sdk/retrieve/budget.ts'

const coarse = fc.constantFrom('signs' as const, 'collision' as const)

describe('budget', () => {
  it.each([
    [1, 0.5, 0.5],
    [4_999, 0.5, 0.5],
    [5_000, 0.25, 0.3],
    [9_999, 0.25, 0.3],
    [10_000, 0.2, 0.25],
    [29_999, 0.2, 0.25],
    [30_000, 0.1, 0.2],
    [1_000_000, 0.1, 0.2],
  ])('of %i keys is the published β %f and ρ %f, half of that β for signs', (count, beta, rho) => {
    expect(candidateRatio(count, { coarse: 'collision' })).toBe(beta)
    expect(candidateRatio(count, { coarse: 'signs' })).toBe(beta / 2)
    expect(collisionRatio(count, {})).toBe(rho)
  })

  it('takes what the policy says instead', () => {
    expect(candidateRatio(100_000, { coarse: 'signs', beta: 0.02 })).toBe(0.02)
    expect(collisionRatio(100, { rho: 0.07 })).toBe(0.07)
    expect(candidateCount(1001, 3, { coarse: 'signs', beta: 0.02 })).toBe(21)
  })

  it('is at least K and at most the zone', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 50_000 }), fc.integer({ min: 1, max: 60_000 }), coarse, (n, k, kind) => {
        const C = candidateCount(n, k, { coarse: kind })
        expect(C).toBeLessThanOrEqual(n)
        expect(C).toBeGreaterThanOrEqual(Math.min(n, k))
        expect(C).toBeGreaterThanOrEqual(candidateRatio(n, { coarse: kind }) * n - 1e-9)
      }),
    )
  })

  it('has a bound that no shorter zone exceeds, though β falls at the published lengths', () => {
    for (const kind of ['signs', 'collision'] as const)
      for (const count of [1, 16, 4_999, 5_008, 10_000, 12_000, 30_000, 40_000]) {
        const most = mostCandidates(count, 10, { coarse: kind })
        for (let n = 1; n <= count; n += n < 4_990 ? 97 : 1)
          if (candidateCount(n, 10, { coarse: kind }) > most) expect.fail(`${n} keys ask for more than ${most}`)
        expect(most).toBeLessThanOrEqual(count)
      }
  })
})
