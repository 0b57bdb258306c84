import { describe, expect, it } from 'vitest'
import { exactAttention, upTo } from '../../support/exact.ts'
import { gaussians, random } from '../../support/inputs.ts'
import { exactTop } from './exact-top.ts'
import { best, dot, type Finder, meanQuery } from './finder.ts'
import { Lane } from './lane.ts'
import { magicPig } from './lsh-sampling.ts'
import { quest } from './pages.ts'
import { productQuantizer } from './product-quantizer.ts'
import { windowOnly } from './window.ts'

const [d, n, group] = [16, 96, 2]
const next = random(3)
const keys = gaussians(next, n * d)
const values = gaussians(next, n * d)
const queries = gaussians(next, group * d)
const search = { queries, d, keys, zone: n, k: 12 }
const idsOf = (finder: Finder) => [...finder.index(keys, d).find(search)[0].ids].sort((a, b) => a - b)

describe('finders', () => {
  it('take the best of a list, ties to the lower', () => {
    expect([...best(Float32Array.of(1, 3, 2, 3, 2), 5, 3)]).toEqual([1, 2, 3])
    expect([...best(Float32Array.of(1, 3), 2, 5)]).toEqual([0, 1])
  })

  it('exact top-K: by the product with the mean query', () => {
    const scores = upTo(n).map((i) => dot(keys, i * d, meanQuery(search), 0, d))
    const want = upTo(n).sort((a, b) => scores[b] - scores[a])
    expect(idsOf(exactTop)).toEqual(want.slice(0, 12).sort((a, b) => a - b))
  })

  it('product quantizers with a centroid a key find the exact top-K', () => {
    expect(idsOf(productQuantizer(2, n))).toEqual(idsOf(exactTop))
  })

  it('product quantizers code what is added by the codebooks that they have', () => {
    const finder = productQuantizer(2, 8)
    const grown = finder.index(keys, d).over(keys.subarray(0, 40 * d))
    for (let i = 40; i < n; i++) grown.add(keys.subarray(i * d, (i + 1) * d))
    expect(grown.find(search)).toEqual(finder.index(keys, d).find(search))
  })

  it('Quest: whole pages, and that of the best key among them where its bound is the largest', () => {
    const spiked = keys.slice()
    spiked.set(
      meanQuery(search).map((x) => 20 * x),
      37 * d,
    )
    const ids = quest.index(spiked, d).find({ ...search, keys: spiked })[0].ids
    expect([...ids]).toEqual(Array.from({ length: 16 }, (_, i) => 32 + i))
  })

  it('MagicPIG: finds the query itself, weighs every key, and holds what is added', () => {
    const copy = keys.slice()
    copy.set(
      queries.subarray(0, d).map((x) => 3 * x),
      50 * d,
    )
    const whole = magicPig.index(copy, d)
    const [first, second] = whole.find({ ...search, keys: copy })
    expect(first.ids).toContain(50)
    expect(first.ids.length).toBeLessThanOrEqual(12)
    for (const { ids, offsets } of [first, second]) {
      expect(offsets).toHaveLength(ids.length)
      for (const offset of offsets!) expect(offset).toBeGreaterThanOrEqual(0)
    }
  })

  it('the window: the latest keys', () => {
    expect(idsOf(windowOnly)).toEqual(Array.from({ length: 12 }, (_, i) => n - 12 + i))
  })
})

describe('lanes', () => {
  it.each([exactTop, quest, windowOnly, productQuantizer(2, 8)])(
    'attend to everything where K is the zone: $name',
    (finder) => {
      const lane = Lane.over(finder, [[{ keys: round(keys), values: round(values) }]], d, { sink: 2, local: 8 }, 1000)
      const more = { keys: round(gaussians(next, 20 * d)), values: round(gaussians(next, 20 * d)) }
      for (let i = 0; i < 20; i++)
        lane.append(0, more.keys.subarray(i * d, (i + 1) * d), more.values.subarray(i * d, (i + 1) * d))
      const all = {
        n: n + 20,
        d,
        queries,
        keys: joined(round(keys), more.keys),
        values: joined(round(values), more.values),
      }
      const want = exactAttention(all, queries, upTo(n + 20)).output
      for (const [i, x] of lane.attend(0, queries).entries()) expect(Math.abs(x - want[i])).toBeLessThan(1e-5)
      expect(lane.meanRows).toBe(n + 20)
    },
  )
})

/** To numbers that bf16 holds. */
function round(x: Float32Array): Float32Array {
  return x.map((v) => Math.round(v * 32) / 32)
}

function joined(a: Float32Array, b: Float32Array): Float32Array {
  const out = new Float32Array(a.length + b.length)
  out.set(a)
  out.set(b, a.length)
  return out
}
