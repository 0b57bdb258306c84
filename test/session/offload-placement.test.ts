import { expect, it } from 'vitest'
import { reload } from '../../adapters/workers-reload.ts'
import { Engine } from '../../sdk/engine.ts'
import { placementOf } from '../../sdk/session/placement.ts'
import type { RestoreOptions } from '../../sdk/session/restore.ts'
import { backendCases } from '../support/backends.ts'
import { expectOffloaded } from '../support/offload.ts'
import { expectSameState, feed, options, refused, sequence } from '../support/sessions.ts'

const seq = sequence(361, 200)
const PLACEMENT = { offload: 'always', hotRows: 12, vramBudget: 1e9, hostBudget: 2e9 } as const

async function opened() {
  const engine = new Engine(await backendCases[0].open())
  const session = await engine.createSession(options({}, PLACEMENT))
  await feed(session, seq, 0, 200, 50)
  return { engine, session }
}

it('a fork with another policy lives where its parent does, unless that says otherwise', async () => {
  const { session } = await opened()
  const kept = await session.fork({ policy: { k: 6, local: 5, offload: undefined } })
  expect(placementOf(kept.config.policy)).toEqual(PLACEMENT)
  expect(kept.config.policy).toMatchObject({ k: 6, local: 5 })
  expectOffloaded(kept)
  const moved = await session.fork({ policy: { k: 8, offload: 'never', hotRows: 40 } })
  expect(placementOf(moved.config.policy)).toEqual({ ...PLACEMENT, offload: 'never', hotRows: 40 })
  expect(moved.memory().pages).toBeUndefined()
})

it('a session that its log brings back lives where its record says', async () => {
  const { engine, session } = await opened()
  const record = { tenant: 'a', ttl: 60, options: options({}, PLACEMENT) }
  const log = { snapshot: () => session.snapshot(), entries: () => [] }
  const stored = { id: 'b', record, used: 0 } as unknown as Parameters<typeof reload>[1]
  const back = await reload(engine, stored, log as unknown as Parameters<typeof reload>[2])
  expect(placementOf(back.config.policy)).toEqual(PLACEMENT)
  expectOffloaded(back)
  await expectSameState(back, session)
})

it('a placement that says anything else is refused', async () => {
  const { engine, session } = await opened()
  for (const placement of [null, 'always', [], { k: 3 }, { offload: 'sometimes' }, { hotRow: 12 }]) {
    const given = { placement } as unknown as RestoreOptions
    await refused(engine.restore(session.snapshot(), given), 'bad_config')
  }
  const held = session.memory().total
  await engine.restore(session.snapshot(), { placement: { offload: 'always', hotRows: undefined } })
  expect(session.memory().total).toBe(held)
})

it('goes to the host by itself where what other sessions left of the device is too little', async () => {
  const backend = await backendCases[0].open()
  let total = Number.POSITIVE_INFINITY
  const limits = () => ({ total, buffer: Number.POSITIVE_INFINITY })
  const engine = new Engine(
    new Proxy(backend, { get: (of, key) => (key === 'limits' ? limits : Reflect.get(of, key)) }),
  )
  const given = options({ store: 'f32', capacity: 8192 }, { hotRows: 12 })
  total = 1.5 * engine.estimate(given).total
  const first = await engine.createSession(given)
  expect(first.memory().pages).toBeUndefined()
  const second = await engine.createSession(given)
  await feed(second, seq, 0, 200, 50)
  expectOffloaded(second)
  expectOffloaded(await second.fork())
  const little = { ...given, policy: { ...given.policy, hostBudget: 1 } }
  await feed(first, seq, 0, 200, 50)
  await expectSameState(second, first)
  // The host may not take it either: then it stays on the device, which says so where it is full.
  expect((await engine.createSession(little)).memory().pages).toBeUndefined()
})

it('advises to offload only where that would help', async () => {
  const { engine } = await opened()
  const never = (vramBudget?: number) =>
    options({ store: 'f32', capacity: 8192 }, { hotRows: 12, offload: 'never', vramBudget })
  const { total } = engine.estimate(never())
  expect((await refused(() => engine.estimate(never(total - 1)), 'out_of_memory')).fix).toContain("'always'")
  expect((await refused(() => engine.estimate(never(100)), 'out_of_memory')).fix).not.toContain("'always'")
})
