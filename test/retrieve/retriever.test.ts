import { expect, it } from 'vitest'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { exactBest, exactScores, shareFound } from '../support/exact.ts'
import { expectSame } from '../support/repeat.ts'
import { feed, options, queriesAt, type Sequence, sequence } from '../support/sessions.ts'

const shape = { headDim: 64, kvHeads: 2, queryHeads: 4 }
const N = 900
/** Keys asked for. A GPU compiles a top-k for each power of two, so every test asks for 17 to 32. */
const K = 20
const KINDS: Record<string, PolicyOptions> = {
  'signs, mean': { coarse: 'signs', group: 'mean' },
  'signs, max': { coarse: 'signs', group: 'max' },
  'collision, mean': { coarse: 'collision', group: 'mean' },
  'collision, max': { coarse: 'collision', group: 'max' },
}

onEveryBackend('retrieve', (backend) => {
  const seq = sequence(11, N, shape)

  async function open(policy: PolicyOptions = {}, given: Sequence = seq, n = N) {
    const session = await new Engine(backend()).createSession(options({ ...shape, capacity: 1000 }, policy))
    await feed(session, given, 0, n)
    return session
  }

  it.each(Object.entries(KINDS))(
    'gives positions of the zone, best first, with estimates near: %s',
    async (_, policy) => {
      const session = await open(policy)
      const { sink, retrieval } = session.stats().layers[0].zones
      expect(sink).toBe(4)
      for (const t of [5, 450]) {
        const queries = queriesAt(seq, t)
        const { indices, scores, k } = await session.retrieve(0, { queries, k: K })
        expect([k, indices.length, scores.length]).toEqual([20, 40, 40])
        const exact = exactScores(seq, queries, policy.group)
        const group = Array.from({ length: 4 }, (_, g) => Math.hypot(...queries.subarray(g * 64, g * 64 + 64)))
        for (let h = 0; h < 2; h++) {
          const ids = [...indices.subarray(h * 20, h * 20 + 20)]
          expect(new Set(ids).size).toBe(20)
          ids.forEach((position, i) => {
            expect(position).toBeGreaterThanOrEqual(sink)
            expect(position).toBeLessThan(sink + retrieval)
            if (i > 0) expect(scores[h * 20 + i]).toBeLessThanOrEqual(scores[h * 20 + i - 1])
            const key = Math.hypot(...seq.keys.subarray((h * N + position) * 64, (h * N + position + 1) * 64))
            const near = 0.05 * Math.max(...group) * key
            expect(Math.abs(scores[h * 20 + i] - exact[h][position])).toBeLessThan(near)
          })
        }
        const want = exactBest(exact, sink, sink + retrieval, 20)
        expect(shareFound(indices, want)).toBeGreaterThan(0.5)
      }
    },
  )

  it('returns the whole zone where k reaches it, whatever k', async () => {
    const session = await open({}, seq, 52)
    const { sink, retrieval } = session.stats().layers[0].zones
    const queries = queriesAt(seq, 40)
    const whole = await session.retrieve(0, { queries, k: retrieval })
    const more = await session.retrieve(0, { queries, k: 5000 })
    expect([whole.k, more.k]).toEqual([retrieval, retrieval])
    expectSame(more.indices, whole.indices, 'indices')
    expectSame(more.scores, whole.scores, 'scores')
    for (let h = 0; h < 2; h++) {
      const ids = [...whole.indices.subarray(h * retrieval, (h + 1) * retrieval)].sort((a, b) => a - b)
      expect(ids).toEqual(Array.from({ length: retrieval }, (_, i) => sink + i))
    }
    const few = await session.retrieve(0, { queries, k: 17 })
    expect([few.indices[0], few.indices[17]]).toEqual([whole.indices[0], whole.indices[retrieval]])
  })

  it('takes k from the policy unless asked', async () => {
    const session = await open({ k: 23 })
    expect((await session.retrieve(0, { queries: queriesAt(seq, 3) })).k).toBe(23)
    expect((await session.retrieve(0, { queries: queriesAt(seq, 3), k: 24 })).k).toBe(24)
  })

  it('gives nothing while the zone is empty', async () => {
    for (const n of [0, 3, 20]) {
      const { indices, scores, k } = await (await open({}, seq, n)).retrieve(0, { queries: queriesAt(seq, 0) })
      expect([indices.length, scores.length, k]).toEqual([0, 0, 0])
    }
  })

  it('selects the same bytes twice in one session and in two', async () => {
    for (const policy of Object.values(KINDS)) {
      const [one, two] = [await open(policy), await open(policy)]
      const queries = queriesAt(seq, 77)
      const runs = [one, one, two].map((session) => session.retrieve(0, { queries, k: 30 }))
      const [first, ...others] = await Promise.all(runs)
      for (const other of others) {
        expectSame(other.indices, first.indices, 'indices')
        expectSame(other.scores, first.scores, 'scores')
      }
    }
  })

  it('looks at as many candidates as β and ρ say', async () => {
    const queries = queriesAt(seq, 500)
    const want = exactBest(exactScores(seq, queries), 4, 4 + 880, 20)
    const recall = async (policy: PolicyOptions) =>
      shareFound((await (await open(policy)).retrieve(0, { queries, k: K })).indices, want)
    for (const coarse of ['signs', 'collision'] as const) {
      const [few, all] = [await recall({ coarse, beta: 0.03 }), await recall({ coarse, beta: 1 })]
      expect(few).toBeLessThan(all)
      expect(all).toBeGreaterThan(0.8)
    }
    const [narrow, wide] = [0.002, 0.5].map((rho) => recall({ coarse: 'collision', beta: 0.08, rho }))
    expect(await narrow).toBeLessThan(await wide)
  })

  it('lets a key count its best query with max, and the mean with mean', async () => {
    const queries = new Float32Array(4 * 64)
    queries[3] = 10
    queries[64 + 5] = -10
    const one = { ...seq, keys: seq.keys.map((v) => v * 0.01) }
    for (const [position, coordinate, value] of [
      [100, 3, 5],
      [200, 5, -5],
    ])
      one.keys[position * 64 + coordinate] = value
    for (const group of ['mean', 'max'] as const) {
      const { indices, scores } = await (await open({ group }, one)).retrieve(0, { queries, k: K })
      expect([...indices.subarray(0, 2)].sort()).toEqual([100, 200])
      for (const score of scores.subarray(0, 2)) expect(Math.abs(score - (group === 'max' ? 50 : 25))).toBeLessThan(5)
    }
  })

  it('finds more with norm weights where keys differ in length', async () => {
    const varied = sequence(5, N, shape)
    const mean = async (normWeighted: boolean) => {
      const session = await open({ normWeighted, beta: 0.04 }, varied)
      let sum = 0
      for (let t = 0; t < 8; t++) {
        const queries = queriesAt(varied, 100 * t)
        const { sink, retrieval } = session.stats().layers[0].zones
        const want = exactBest(exactScores(varied, queries), sink, sink + retrieval, 20)
        sum += shareFound((await session.retrieve(0, { queries, k: K })).indices, want)
      }
      return sum / 8
    }
    expect(await mean(true)).toBeGreaterThan((await mean(false)) + 0.05)
  })

  it('takes the presets: paper is collision, fast is 2% of signs, and fields beside them win', async () => {
    const policyOf = async (policy: PolicyOptions) => (await open(policy, seq, 0)).config.policy
    expect(await policyOf({ preset: 'paper' })).toMatchObject({ coarse: 'collision' })
    expect((await policyOf({ preset: 'paper' })).beta).toBeUndefined()
    expect(await policyOf({ preset: 'fast' })).toMatchObject({ coarse: 'signs', beta: 0.02 })
    expect(await policyOf({ preset: 'fast', beta: 0.3 })).toMatchObject({ coarse: 'signs', beta: 0.3 })
    expect(await policyOf({ preset: 'paper', coarse: 'signs' })).toMatchObject({ coarse: 'signs' })
    expect(await policyOf({ preset: 'paper', coarse: undefined })).toMatchObject({ coarse: 'collision' })
    const queries = queriesAt(seq, 9)
    const [preset, spelled] = [await open({ preset: 'paper' }), await open({ coarse: 'collision' })]
    const [a, b] = await Promise.all([preset, spelled].map((session) => session.retrieve(0, { queries, k: K })))
    expectSame(a.indices, b.indices, 'indices')
  })
})
