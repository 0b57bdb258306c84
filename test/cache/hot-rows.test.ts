import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { HotRows } from '../../sdk/cache/hot-rows.ts'
import { integer, pick, random } from '../support/inputs.ts'

/** A device that really holds rows: what slot holds the row of which id. */
class Device {
  readonly rows: Int32Array
  constructor(readonly slots: number) {
    this.rows = new Int32Array(slots).fill(-1)
  }

  step(hot: HotRows, given: ArrayLike<number>): number {
    const ids = Float64Array.from(given)
    const missing = Array.from(ids).filter((id) => id >= 0 && !this.rows.includes(id)).length
    const plan = hot.plan(ids, ids.length)
    plan.fetched.forEach((i, j) => {
      this.rows[(plan.cursor + j) % this.slots] = ids[i]
    })
    hot.commit(ids, plan)
    for (let i = 0; i < ids.length; i++) {
      if (ids[i] < 0) expect(plan.slots[i]).toBe(-1)
      else expect(this.rows[plan.slots[i]]).toBe(ids[i])
    }
    return missing
  }
}

describe('hot rows', () => {
  it('give every id the slot that holds its row, whatever is asked for in turn', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 40 }), fc.nat(), fc.integer({ min: 1, max: 60 }), (slots, seed, zone) => {
        const next = random(seed)
        const [hot, device] = [new HotRows(slots), new Device(slots)]
        for (let step = 0; step < 60; step++) {
          const ids = Int32Array.from(pick(next, zone, integer(next, 0, Math.min(slots, zone))))
          if (ids.length > 0 && next() < 0.2) ids[integer(next, 0, ids.length - 1)] = -1
          device.step(hot, ids)
          if (next() < 0.05) hot.clear()
        }
      }),
    )
  })

  it('tell rows apart by more than 32 bits', () => {
    const [hot, device] = [new HotRows(8), new Float64Array(8)]
    const rows = Float64Array.from([1, 1 + 2 ** 32, 1 + 2 ** 40])
    const plan = hot.plan(rows, 3)
    for (const i of plan.fetched) device[plan.slots[i]] = rows[i]
    hot.commit(rows, plan)
    const again = hot.plan(rows, 3)
    expect([...again.slots].map((slot) => device[slot])).toEqual([...rows])
    expect([...again.fetched]).toEqual([])
  })

  it('fetch nothing twice that is asked for again and again, but for its turn in the circle', () => {
    const [hot, device] = [new HotRows(100), new Device(100)]
    const fresh = Array.from({ length: 50 }, (_, step) => [0, 1, 2, 3, 4, 1000 + 2 * step, 1001 + 2 * step])
    const missing = fresh.map((ids) => device.step(hot, ids))
    expect(missing).toEqual([7, ...Array.from({ length: 49 }, () => 2)])
  })

  it('change nothing by planning', () => {
    const hot = new HotRows(4)
    const rows = (...ids: number[]) => Float64Array.from(ids)
    hot.commit(rows(1, 2, 3), hot.plan(rows(1, 2, 3), 3))
    const once = structuredClone(hot.plan(rows(3, 4, 5, 6), 4))
    expect(hot.plan(rows(3, 4, 5, 6), 4)).toEqual(once)
    expect([...hot.plan(rows(1, 2, 3), 3).fetched]).toEqual([])
  })
})
