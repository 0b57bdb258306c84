import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { LayerPages, pageShift } from '../../sdk/cache/layer-pages.ts'
import { MemoryPages, type PageTier } from '../../sdk/cache/pages.ts'
import { ParisError } from '../../sdk/errors.ts'
import { integer, random } from '../support/inputs.ts'

const ROW = 16

/** Rows of one layer that know themselves: bytes drawn from head, position and a version. */
function bytesFor(h: number, from: number, count: number, version: number): Uint8Array {
  const out = new Uint8Array(count * ROW)
  for (let n = 0; n < count; n++) out.fill((h * 31 + (from + n) * 7 + version * 13) & 255, n * ROW, (n + 1) * ROW)
  return out
}

async function write(tier: PageTier, pages: LayerPages, h: number, from: number, count: number, version: number) {
  const at = new Float64Array(count)
  pages.run(tier, h, from, count, at)
  await tier.scatter(at, count, ROW, bytesFor(h, from, count, version), bytesFor(h, from, count, version + 1))
}

/** All rows of all heads are those of the versions that wrote them. */
async function expectRows(tier: PageTier, pages: LayerPages, versions: readonly number[]) {
  const at = new Float64Array(versions.length)
  const [keys, values] = [new Uint8Array(at.length * ROW), new Uint8Array(at.length * ROW)]
  for (let h = 0; h < 3; h++) {
    pages.run(tier, h, 0, at.length, at)
    await tier.gather(at, at.length, ROW, keys, values)
    for (const [n, version] of versions.entries())
      for (const [rows, v] of [
        [keys, version],
        [values, version + 1],
      ] as const) {
        const byte = (h * 31 + n * 7 + v * 13) & 255
        if (rows.subarray(n * ROW, (n + 1) * ROW).some((b) => b !== byte)) expect.fail(`row ${n} of head ${h}`)
      }
  }
}

describe('pages of rows in memory', () => {
  it('give back what was written, over forks that go on apart', async () => {
    await fc.assert(
      fc.asyncProperty(fc.nat(), fc.integer({ min: 0, max: 4 }), async (seed, shift) => {
        const next = random(seed)
        const open = new MemoryPages((2 * ROW * 3) << shift)
        let all = [{ tier: open, pages: new LayerPages(3, ROW, shift), length: 0, versions: [] as number[] }]
        for (let step = 0; step < 30; step++) {
          const i = integer(next, 0, all.length - 1)
          const one = all[i]
          const kind = integer(next, 0, 5)
          if (kind < 3) {
            const count = integer(next, 1, 20)
            await one.pages.reserve(one.tier, one.length + count)
            for (let h = 0; h < 3; h++) await write(one.tier, one.pages, h, one.length, count, step)
            for (let n = 0; n < count; n++) one.versions[one.length + n] = step
            one.length += count
          } else if (kind === 3) {
            one.length = integer(next, 0, one.length)
            one.pages.truncate(one.tier, one.length)
            expect(one.tier.bytes()).toBe(Math.ceil(one.length / 2 ** shift) * one.tier.pageBytes)
          } else if (kind === 4 && all.length < 4) {
            all.push({ ...one, tier: one.tier.fork(), pages: one.pages.copy(), versions: [...one.versions] })
          } else if (all.length > 1) {
            one.tier.dispose()
            all = all.filter((other) => other !== one)
          }
          for (const { tier, pages, length, versions } of all) await expectRows(tier, pages, versions.slice(0, length))
        }
      }),
      { numRuns: 30 },
    )
  })

  it('are taken all or none, and refused as memory is', async () => {
    const tier = new MemoryPages(2 * ROW, 4)
    const pages = new LayerPages(1, ROW, 0)
    await pages.reserve(tier, 2)
    const refused = await pages.reserve(tier, 5).catch((error) => error)
    expect(refused).toBeInstanceOf(ParisError)
    expect(refused.code).toBe('out_of_memory')
    expect(tier.bytes()).toBe(2 * 2 * ROW)
    await pages.reserve(tier, 4)
    expect(tier.bytes()).toBe(4 * 2 * ROW)
  })

  it('are a few MiB at most, and a small part of a short session', () => {
    for (const [heads, row, capacity] of [
      [8, 256, 1 << 20],
      [1, 16, 1 << 28],
      [1024, 1024, 1 << 20],
      [2, 32, 300],
      [1, 16, 1],
    ]) {
      const bytes = (2 * row * heads) << pageShift(heads, row, capacity)
      expect(bytes).toBeLessThanOrEqual(Math.max(2 ** 22, 2 * row * heads))
      expect(bytes).toBeLessThanOrEqual(Math.max(1, capacity / 4) * 2 * row * heads)
    }
  })
})
