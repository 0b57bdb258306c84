import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { zonesOf } from '../../sdk/cache/zones.ts'

const policies = fc.record({
  sink: fc.integer({ min: 0, max: 40 }),
  local: fc.integer({ min: 0, max: 40 }),
  update: fc.integer({ min: 1, max: 60 }),
})
const lengths = fc.integer({ min: 0, max: 400 })

describe('zones', () => {
  it('partition [0, n) and follow the closed form', () => {
    fc.assert(
      fc.property(policies, lengths, (policy, n) => {
        const { sink, retrieval, local, buffer } = zonesOf(n, policy)
        for (const size of [sink, retrieval, local, buffer]) expect(size).toBeGreaterThanOrEqual(0)
        expect(sink + retrieval + local + buffer).toBe(n)
        expect(sink).toBe(Math.min(n, policy.sink))
        expect(buffer).toBe((n - sink) % policy.update)
        expect(local).toBe(Math.min(n - sink - buffer, policy.local))
      }),
    )
  })

  it('never take a token back from the retrieval zone as n grows', () => {
    fc.assert(
      fc.property(policies, (policy) => {
        let before = 0
        for (let n = 0; n <= 300; n++) {
          const { retrieval } = zonesOf(n, policy)
          expect(retrieval).toBeGreaterThanOrEqual(before)
          before = retrieval
        }
      }),
    )
  })

  it('hold every token in the retrieval zone two update intervals after it left the local one', () => {
    fc.assert(
      fc.property(policies, lengths, (policy, position) => {
        const n = Math.max(position, policy.sink) + policy.local + 2 * policy.update
        const { sink, retrieval } = zonesOf(n, policy)
        expect(position < sink + retrieval).toBe(true)
      }),
    )
  })

  it.each([
    { n: 0, policy: { sink: 4, local: 8, update: 8 }, want: [0, 0, 0, 0] },
    { n: 1, policy: { sink: 4, local: 8, update: 8 }, want: [1, 0, 0, 0] },
    { n: 4, policy: { sink: 4, local: 8, update: 8 }, want: [4, 0, 0, 0] },
    { n: 11, policy: { sink: 4, local: 8, update: 8 }, want: [4, 0, 0, 7] },
    { n: 12, policy: { sink: 4, local: 8, update: 8 }, want: [4, 0, 8, 0] },
    { n: 21, policy: { sink: 4, local: 8, update: 8 }, want: [4, 8, 8, 1] },
    { n: 30, policy: { sink: 4, local: 0, update: 8 }, want: [4, 24, 0, 2] },
    { n: 45, policy: { sink: 4, local: 8, update: 20 }, want: [4, 32, 8, 1] },
    { n: 30, policy: { sink: 4, local: 8, update: 1 }, want: [4, 18, 8, 0] },
    { n: 30, policy: { sink: 0, local: 8, update: 8 }, want: [0, 16, 8, 6] },
    { n: 30, policy: { sink: 0, local: 0, update: 1 }, want: [0, 30, 0, 0] },
  ])('of $n tokens with $policy are $want', ({ n, policy, want }) => {
    const { sink, retrieval, local, buffer } = zonesOf(n, policy)
    expect([sink, retrieval, local, buffer]).toEqual(want)
  })
})
