import { describe, expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { RecallAudit, recallOf } from '../../sdk/retrieve/audit.ts'
import { onEveryBackend } from '../support/backends.ts'
import { exactBest, exactScores, shareFound } from '../support/exact.ts'
import { feed, options, queriesAt, sequence } from '../support/sessions.ts'

const shape = { headDim: 64, kvHeads: 2, queryHeads: 4 }

onEveryBackend('audit', (backend) => {
  const seq = sequence(31, 800, shape)
  const open = async (auditEvery: number, group: 'mean' | 'max' = 'mean') => {
    const policy = { auditEvery, group, k: 20, beta: 0.05 }
    const session = await new Engine(backend()).createSession(options({ ...shape, capacity: 800 }, policy))
    await feed(session, seq, 0, 800)
    return session
  }

  it.each(['mean', 'max'] as const)('measures recall as counted from the exact top K: %s', async (group) => {
    const session = await open(1, group)
    const { sink, retrieval } = session.stats().layers[0].zones
    const want: number[] = []
    for (let t = 0; t < 6; t++) {
      const queries = queriesAt(seq, 100 * t)
      const { indices } = await session.retrieve(0, { queries })
      want.push(shareFound(indices, exactBest(exactScores(seq, queries, group), sink, sink + retrieval, 20)))
      const { last, mean, audits } = session.stats().recall
      expect(audits).toBe(t + 1)
      expect(last).toBeCloseTo(want[t], 10)
      expect(mean).toBeCloseTo(want.reduce((a, b) => a + b, 0) / want.length, 10)
    }
    expect(Math.min(...want)).toBeLessThan(1)
    expect(Math.max(...want)).toBeGreaterThan(0.1)
  })

  it('takes every n-th retrieval, those of attention steps too', async () => {
    const session = await open(3)
    const queries = queriesAt(seq, 0)
    for (let i = 1; i <= 8; i++) {
      if (i % 2) await session.attend(0, { queries })
      else await session.retrieve(0, { queries })
      expect(session.stats().recall.audits).toBe(Math.floor(i / 3))
    }
  })

  it('measures an attention step as it does a retrieval, and changes neither', async () => {
    const [audited, plain] = [await open(1), await open(0)]
    const queries = queriesAt(seq, 250)
    const [a, b] = [await audited.attend(0, { queries }), await plain.attend(0, { queries })]
    expect(a).toEqual(b)
    const step = audited.stats().recall.last
    await audited.retrieve(0, { queries })
    expect(audited.stats().recall.last).toBe(step)
    expect(plain.stats().recall).toEqual({ mean: Number.NaN, last: Number.NaN, audits: 0 })
  })
})

describe('recall', () => {
  it('is the mean share over heads, in any order', () => {
    expect(recallOf(Uint32Array.of(1, 2, 3, 4), Uint32Array.of(2, 1, 9, 8), 2)).toBe(0.5)
    expect(recallOf(Uint32Array.of(1, 2, 3, 4), Uint32Array.of(2, 1, 3, 8), 2)).toBe(0.75)
    expect(recallOf(Uint32Array.of(1, 2, 3, 4), Uint32Array.of(3, 4, 1, 2), 2)).toBe(0)
  })

  it('is never due when off', () => {
    const off = new RecallAudit(0)
    expect([off.due(), off.due()]).toEqual([false, false])
    const second = new RecallAudit(2)
    expect([1, 2, 3, 4].map(() => second.due())).toEqual([false, true, false, true])
  })
})
