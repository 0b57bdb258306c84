import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import {
  magnitudeByte,
  makeRotation,
  type SummaryLayout,
  signByte,
  strideOf,
  summaryParts,
  weightByte,
} from '../../sdk/codec/codec.ts'
import { makeShape, paddedDim, summaryBytes } from '../../sdk/shape.ts'
import { HEAD_DIMS, integer, random } from '../support/inputs.ts'
import { emptySummary, relayout } from '../support/jobs.ts'
import { codesOf } from '../support/repeat.ts'

const LAYOUTS: readonly SummaryLayout[] = [
  { block: 1, align: 1 },
  { block: 16, align: 1 },
  { block: 1, align: 4 },
  { block: 16, align: 4 },
]

it('a summary takes the bytes a key that it promises', () => {
  const bytes = Object.fromEntries(HEAD_DIMS.map((d) => [d, summaryBytes(paddedDim(d))]))
  expect(bytes).toEqual({ 8: 7, 16: 12, 32: 22, 64: 42, 80: 82, 96: 82, 128: 82, 192: 162, 256: 162 })
  expect(summaryBytes(128, true)).toBe(83)
  for (const d of HEAD_DIMS) {
    const D = paddedDim(d)
    const { signs, magnitudes, weights, scales, norms } = summaryParts(3, 160, D, LAYOUTS[0])
    expect(signs + magnitudes + weights + scales).toBe(3 * 160 * summaryBytes(D))
    expect(signs + magnitudes + weights + scales + norms).toBe(3 * 160 * summaryBytes(D, true))
  }
})

it('pads head dimensions to powers of two', () => {
  expect(HEAD_DIMS.map(paddedDim)).toEqual([8, 16, 32, 64, 128, 128, 128, 256, 256])
  expect(makeShape(2, 8, 2, 80)).toEqual({
    layers: 2,
    queryHeads: 8,
    kvHeads: 2,
    group: 4,
    headDim: 80,
    paddedDim: 128,
    subspaces: 16,
  })
  expect(makeRotation(192, new Bytes(256))).toMatchObject({ d: 192, D: 256 })
})

describe.each(LAYOUTS)('layout $block × $align', (layout) => {
  it.each([8, 16, 64, 128])('gives every byte a place of its own inside its buffer, D = %i', (D) => {
    const summary = { ...emptySummary(2, 48, D), layout }
    const size = summaryParts(2, 48, D, layout)
    const seen = { signs: new Set<number>(), magnitudes: new Set<number>(), weights: new Set<number>() }
    for (let h = 0; h < 2; h++)
      for (let n = 0; n < 48; n++)
        for (let b = 0; b < D / 8; b++) {
          seen.signs.add(signByte(summary, h, n, b))
          seen.weights.add(weightByte(summary, h, n, b))
          for (let p = 0; p < 3; p++) seen.magnitudes.add(magnitudeByte(summary, h, n, p, b))
        }
    expect(seen.signs.size).toBe((2 * 48 * D) / 8)
    expect(seen.weights.size).toBe((2 * 48 * D) / 8)
    expect(seen.magnitudes.size).toBe((2 * 48 * 3 * D) / 8)
    for (const part of ['signs', 'magnitudes', 'weights'] as const)
      expect(Math.max(...seen[part])).toBeLessThan(size[part])
  })

  it('comes back from canonical as it was', () => {
    const next = random(1)
    const from = emptySummary(2, 40, 16, { norms: true, counts: true })
    for (const part of [from.signs, from.magnitudes, from.weights, from.scales, from.norms!])
      part.u8.forEach((_, i) => {
        part.u8[i] = integer(next, 0, 255)
      })
    const there = relayout(from, layout)
    expect(codesOf(there, from.cap)).toEqual(codesOf(from, from.cap))
    expect(relayout(there, LAYOUTS[0])).toEqual(from)
  })
})

it('lays 16 keys side by side in blocks, aligned keys apart', () => {
  const blocked = { ...emptySummary(2, 32, 16), layout: LAYOUTS[1] }
  expect([0, 1, 15, 16].map((n) => signByte(blocked, 0, n, 0))).toEqual([0, 1, 15, 32])
  expect(signByte(blocked, 0, 3, 1)).toBe(19)
  expect(signByte(blocked, 1, 0, 0)).toBe(64)
  const aligned = { ...emptySummary(2, 32, 16), layout: LAYOUTS[2] }
  expect(signByte(aligned, 0, 1, 0)).toBe(4)
  expect(magnitudeByte(aligned, 0, 1, 2, 1)).toBe(21)
  expect(weightByte(aligned, 1, 0, 1)).toBe(129)
})

it('rounds strides up', () => {
  fc.assert(
    fc.property(fc.nat(4096), fc.constantFrom(...LAYOUTS), (bytes, layout) => {
      const stride = strideOf(bytes, layout)
      expect(stride % layout.align).toBe(0)
      expect(stride - bytes).toBeGreaterThanOrEqual(0)
      expect(stride - bytes).toBeLessThan(layout.align)
    }),
  )
})
