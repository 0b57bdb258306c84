import { expect, it } from 'vitest'
import { divergenceOf } from './drift-exact.ts'
import { cellsOf, mergeTexts, missed, tableOf } from './quality-results.ts'

const score = (name: string, right: number, k = 32) => ({ name, k, right, asked: 16, rows: 100 })
const text = (seed: number, ...scores: ReturnType<typeof score>[]) => ({ tokens: 4096, seed, scores })

it('sums texts, later results of a text in place of earlier ones', () => {
  const texts = mergeTexts([
    text(2, score('exact top-K', 15)),
    text(1, score('exact top-K', 3), score('Quest', 5)),
    text(1, score('exact top-K', 16)),
  ])
  expect(texts.map(({ seed }) => seed)).toEqual([1, 2])
  const cells = cellsOf(texts)
  expect(cells.map(({ name, right, asked, texts: n }) => [name, right, asked, n])).toEqual([
    ['Quest', 5, 16, 1],
    ['exact top-K', 31, 32, 2],
  ])
  expect(tableOf(cells, () => 82)).toContain('31/32 (100)')
})

it('tells where the package is more than one answer below exact top-K, and nowhere else', () => {
  const cells = (ours: number) =>
    cellsOf([text(1, score('exact top-K', 16), score('ParisKV signs 2%', ours), score('Quest', 2))])
  expect(missed(cells(15))).toEqual([])
  expect(missed(cells(14))).toEqual(['ParisKV signs 2%, K 32, 4096 tokens: 14 of 16, exact top-K 16'])
})

it('divergence: 0 of a distribution from itself, shifted or not, and by its definition', () => {
  const p = Float32Array.of(1, 2, 3)
  expect(divergenceOf(p, Float32Array.of(11, 12, 13))).toBeCloseTo(0, 12)
  const [two, three] = [Math.log(2), Math.log(3)]
  const want = 0.5 * Math.log(0.5 / 0.25) + 0.5 * Math.log(0.5 / 0.75)
  expect(divergenceOf(Float32Array.of(two, two), Float32Array.of(0, three))).toBeCloseTo(want, 6)
})
