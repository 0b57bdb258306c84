import { describe, expect, it } from 'vitest'
import { greedy, Sampler } from '../../sdk/llm/sampler.ts'
import { refused } from '../support/sessions.ts'

const logits = Float32Array.from([1, 3, 2, 3, -2, 0.5])

/** Shares of many draws. */
function shares(options: ConstructorParameters<typeof Sampler>[0], draws = 40_000): number[] {
  const sampler = new Sampler(options)
  const counts = new Array<number>(logits.length).fill(0)
  for (let i = 0; i < draws; i++) counts[sampler.sample(logits)]++
  return counts.map((count) => count / draws)
}

function softmax(ids: readonly number[], temperature: number): number[] {
  const weights = ids.map((id) => Math.exp(logits[id] / temperature))
  const sum = weights.reduce((a, b) => a + b)
  return Array.from(logits, (_, id) => (ids.includes(id) ? weights[ids.indexOf(id)] / sum : 0))
}

/** Four standard errors of a share, and a little. */
function expectShares(got: readonly number[], want: readonly number[], draws = 40_000) {
  want.forEach((p, id) => {
    if (p === 0) expect(got[id], `token ${id}`).toBe(0)
    else expect(Math.abs(got[id] - p), `token ${id}`).toBeLessThan(4 * Math.sqrt((p * (1 - p)) / draws) + 1e-4)
  })
}

describe('sampler', () => {
  it('takes the likeliest at temperature 0, the lower id of equals', () => {
    expect(new Sampler({ temperature: 0, topK: 3, topP: 0.5 }).sample(logits)).toBe(1)
    expect(greedy(Float32Array.from([-0, 0, 0]))).toBe(0)
  })

  const all = [0, 1, 2, 3, 4, 5]
  it.each([
    ['all', { temperature: 1 }, all, 1],
    ['hot', { temperature: 3 }, all, 3],
    ['cold', { temperature: 0.5 }, all, 0.5],
    ['top 3', { temperature: 1, topK: 3 }, [1, 3, 2], 1],
    ['top 1 of two equals', { temperature: 1, topK: 1 }, [1], 1],
    ['more than there are', { temperature: 1, topK: 100 }, all, 1],
    // Shares of 1, 3, 2, 0 at temperature 1 are .385, .385, .142, .052: the first two hold .77.
    ['top p', { temperature: 1, topP: 0.75 }, [1, 3], 1],
    ['top p, one more', { temperature: 1, topP: 0.8 }, [1, 3, 2], 1],
    ['a tiny top p', { temperature: 1, topP: 1e-9 }, [1], 1],
    ['top k, then top p of it', { temperature: 1, topK: 3, topP: 0.8 }, [1, 3], 1],
  ] as const)('draws %s as the model says', (_, options, ids, temperature) => {
    expectShares(shares(options), softmax(ids, temperature))
  })

  it('draws the same for a seed and other tokens for another', () => {
    const draw = (seed: number) => {
      const sampler = new Sampler({ temperature: 1, seed })
      return Array.from({ length: 64 }, () => sampler.sample(logits))
    }
    expect(draw(7)).toEqual(draw(7))
    expect(draw(7)).not.toEqual(draw(8))
  })

  it('takes very large and −Inf logits, and refuses NaN', async () => {
    const wide = Float32Array.from([Number.NEGATIVE_INFINITY, 3e38, -3e38])
    for (const temperature of [0, 0.01, 1, 100]) expect(new Sampler({ temperature }).sample(wide)).toBe(1)
    await refused(() => new Sampler().sample(Float32Array.from([1, Number.NaN, 2])), 'not_finite')
    await refused(() => new Sampler().sample(new Float32Array(2).fill(Number.NEGATIVE_INFINITY)), 'not_finite')
  })

  it.each([
    { temperature: -1 },
    { temperature: Number.NaN },
    { topK: 1.5 },
    { topP: 0 },
    { topP: 1.1 },
    { seed: -1 },
    { heat: 1 } as object,
  ])('refuses %j', async (options) => {
    await refused(() => new Sampler(options), 'bad_config')
  })
})
