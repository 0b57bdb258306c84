import { describe, expect, it } from 'vitest'
import { seededSigns } from '../../sdk/codec/signs.ts'

describe('seeded signs', () => {
  it('are what they were: stored codes depend on them', () => {
    const bits = (seed: number, D: number) => [...seededSigns(seed, D)].map((s) => (s < 0 ? '-' : '+')).join('')
    expect(bits(42, 64)).toBe('+-+-+-++++-+-+---+-+-+-++-+---+------+-+++---+---++--+-------+++')
    expect(bits(0, 16)).toBe('-++++-+-++-++-+-')
    expect(bits(0xffffffff, 16)).toBe('+-++++++++----++')
  })

  it('are ±1, and the same ones for every D', () => {
    const longest = seededSigns(7, 256)
    expect(new Set(longest)).toEqual(new Set([1, -1]))
    for (const D of [8, 16, 32, 64, 128]) expect([...seededSigns(7, D)]).toEqual([...longest.subarray(0, D)])
  })

  it('are balanced, over coordinates and over seeds', () => {
    let sum = 0
    const columns = new Int32Array(256)
    for (let seed = 0; seed < 1000; seed++)
      seededSigns(seed, 256).forEach((s, j) => {
        sum += s
        columns[j] += s
      })
    expect(Math.abs(sum)).toBeLessThan(5 * Math.sqrt(256_000))
    for (const column of columns) expect(Math.abs(column)).toBeLessThan(5 * Math.sqrt(1000))
  })

  it('differ between seeds, neighbours too', () => {
    const seen = new Set(Array.from({ length: 2000 }, (_, seed) => seededSigns(seed, 64).join()))
    expect(seen.size).toBe(2000)
    let equal = 0
    for (let seed = 0; seed < 1000; seed++) {
      const [a, b] = [seededSigns(seed, 64), seededSigns(seed + 1, 64)]
      equal += a.filter((s, j) => s === b[j]).length
    }
    expect(Math.abs(equal - 32_000)).toBeLessThan(5 * 127)
  })
})
