import { expect, it } from 'vitest'
import { CENTROIDS, centroid, signTable } from '../../sdk/codec/centroids.ts'
import { gaussians, random } from '../support/inputs.ts'

it('centroids are the 256 sign patterns on the unit sphere', () => {
  const seen = new Set<string>()
  for (let id = 0; id < CENTROIDS; id++) {
    const c = Array.from({ length: 8 }, (_, j) => centroid(id, j))
    expect(Math.hypot(...c)).toBeCloseTo(1, 12)
    expect(c.reduce((bits, v, j) => bits | (v >= 0 ? 1 << j : 0), 0)).toBe(id)
    seen.add(c.join())
  }
  expect(seen.size).toBe(256)
})

it('the nearest centroid of a direction is the one of its signs', () => {
  const next = random(2)
  for (let round = 0; round < 50; round++) {
    const u = gaussians(next, 8)
    const score = (id: number) => u.reduce((sum, v, j) => sum + v * centroid(id, j), 0)
    const best = Array.from({ length: CENTROIDS }, (_, id) => id).sort((a, b) => score(b) - score(a))[0]
    expect(best).toBe(u.reduce((bits, v, j) => bits | (v >= 0 ? 1 << j : 0), 0))
  }
})

it('two sign tables make the score of any centroid', () => {
  const q = gaussians(random(5), 24)
  const [lo, hi] = [new Float32Array(16), new Float32Array(16)]
  signTable(q, 8, lo)
  signTable(q, 12, hi)
  for (let id = 0; id < CENTROIDS; id++) {
    let sum = 0
    for (let j = 0; j < 8; j++) sum += centroid(id, j) * Math.sqrt(8) * q[8 + j]
    expect(Math.fround(lo[id & 15] + hi[id >> 4])).toBeCloseTo(sum, 5)
  }
})

it('a sign table adds pairs in f32, in the order every backend keeps', () => {
  const f = Math.fround
  const q = Float32Array.from([1, 2 ** -24, 2 ** -24, 1 + 2 ** -23])
  const table = new Float32Array(16)
  signTable(q, 0, table)
  expect(table[15]).toBe(f(f(q[0] + q[1]) + f(q[2] + q[3])))
  expect(table[0]).toBe(-table[15])
  expect(table[1]).toBe(f(f(q[0] - q[1]) + f(-q[2] - q[3])))
  expect(table[12]).toBe(f(f(-q[0] - q[1]) + f(q[2] + q[3])))
})
