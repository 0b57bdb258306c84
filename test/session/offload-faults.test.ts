import { expect, it } from 'vitest'
import { MemoryPages } from '../../sdk/cache/pages.ts'
import { Engine } from '../../sdk/engine.ts'
import { ParisError } from '../../sdk/errors.ts'
import type { Session } from '../../sdk/session/session.ts'
import { backendCases, onEveryBackend } from '../support/backends.ts'
import { expectOffloaded, expectSameStep, losable, openTwins, watchedPages } from '../support/offload.ts'
import {
  expectSameState,
  feed,
  options,
  queriesAt,
  refused,
  refusedUnchanged,
  rows,
  sequence,
  snapshotOf,
} from '../support/sessions.ts'

onEveryBackend('an offloaded session at its limits', (backend, name) => {
  const seq = sequence(331, 400)
  const fresh = async () => backendCases.find((entry) => entry.name === name)!.open()

  it('is refused before anything is built where it would not stay within its budgets', async () => {
    const engine = new Engine(backend())
    const allocated = backend().allocated()
    const given = (policy: object) => options({ store: 'f32', capacity: 4096 }, { hotRows: 12, ...policy })
    const { total, pages = 0 } = engine.estimate(given({ offload: 'always' }))
    const fits = { offload: 'always', vramBudget: total - pages, hostBudget: pages } as const
    for (const [field, policy] of [
      ['vramBudget', { ...fits, vramBudget: fits.vramBudget - 1 }],
      ['hostBudget', { ...fits, hostBudget: fits.hostBudget - 1 }],
      ['vramBudget', { ...fits, offload: 'never' }],
    ] as const) {
      for (const call of [() => engine.createSession(given(policy)), () => engine.estimate(given(policy))])
        expect((await refused(call, 'out_of_memory')).where).toContain(field)
    }
    expect(backend().allocated()).toBe(allocated)
    const session = await engine.createSession(given(fits))
    await feed(session, seq, 0, 400, 100)
    const over = { ...fits, hostBudget: 1 }
    expect((await refused(session.fork({ policy: given(over).policy }), 'out_of_memory')).where).toContain('hostBudget')
    const restoring = engine.restore(session.snapshot(), { placement: { hotRows: 12, ...over } })
    expect((await refused(restoring, 'out_of_memory')).where).toContain('hostBudget')
    await session.dispose()
    expect(backend().allocated()).toBe(allocated)
  })

  it('goes to the host by itself where the budget asks for it, and only there', async () => {
    const engine = new Engine(backend())
    const given = (vramBudget?: number) => options({ store: 'f32', capacity: 8192 }, { hotRows: 12, vramBudget })
    const { total } = engine.estimate(given())
    expect(engine.estimate(given(total)).pages).toBeUndefined()
    const estimate = engine.estimate(given(total - 1))
    expect(estimate.pages).toBeGreaterThan(0)
    const session = await engine.createSession(given(total - 1))
    await feed(session, seq, 0, 300)
    expectOffloaded(session)
    expect(session.memory()).toEqual({ ...estimate, pages: session.memory().pages, total: session.memory().total })
    await session.dispose()
    await refused(() => engine.estimate(given(10)), 'out_of_memory')
  })

  it('wants a cache of hot rows that holds what a step retrieves', async () => {
    const engine = new Engine(backend())
    await refused(engine.createSession(options({}, { k: 8, hotRows: 7 })), 'bad_config')
    await refused(engine.createSession(options({}, { offload: 'sometimes' as 'auto' })), 'bad_config')
  })

  it('that finds no page more takes nothing and still answers', async () => {
    const most = 6
    const engine = new Engine(backend(), [], (pageBytes) => new MemoryPages(pageBytes, most))
    const session = await engine.createSession(options({ layers: 2 }, { hotRows: 12, offload: 'always' }))
    const { device } = await openTwins(new Engine(backend()), { layers: 2 })
    for (const one of [session, device]) {
      await feed(one, seq, 0, 64 * 3, 50)
      await feed(one, seq, 0, 64 * 2 + 10, 50, 1)
    }
    const before = session.stats()
    const error = await refusedUnchanged(session, () => session.append(0, rows(seq, 192, 193)), 'out_of_memory')
    expect(error.got).toContain('bytes')
    const both = [0, 1].map((layer) => ({ session, layer, ...rows(seq, 192, 300) }))
    await refusedUnchanged(session, () => engine.appendBatch([...both].reverse()), 'out_of_memory')
    expect(session.stats()).toEqual(before)
    for (const one of [session, device]) await feed(one, seq, 138, 192, 54, 1)
    await expectSameStep({ host: session, device }, queriesAt(seq, 192))
    await expectSameStep({ host: session, device }, queriesAt(seq, 192), 1)
    await expectSameState(session, device)
    for (const one of [session, device]) await one.truncate(100)
    for (const one of [session, device]) await feed(one, seq, 100, 192, 20)
    await expectSameStep({ host: session, device }, queriesAt(seq, 3))
  })

  it('whose first append finds no page stays as if new', async () => {
    const allocated = backend().allocated()
    const engine = new Engine(backend(), [], (pageBytes) => new MemoryPages(pageBytes, 0))
    const session = await engine.createSession(options({}, { offload: 'always' }))
    await refusedUnchanged(session, () => session.append(0, rows(seq, 0, 9)), 'out_of_memory')
    expect(session.memory().total).toBe(0)
    expect(backend().allocated()).toBe(allocated)
  })

  it('outlasts its device: rebuilt on another it is the same', async () => {
    const { backend: fragile, lose } = losable(await fresh())
    const pages = watchedPages(() => {})
    const engine = new Engine(fragile, [], pages.open)
    const policies = [{}, { coarse: 'collision' }, { normWeighted: true }] as const
    const twins = await Promise.all(policies.map((policy) => openTwins(engine, { layers: 2 }, policy)))
    const files: Uint8Array[] = []
    for (const { host, device } of twins) {
      for (const session of [host, device])
        for (const layer of [0, 1]) await feed(session, seq, 0, 300 - 50 * layer, 90, layer)
      files.push(await snapshotOf(device))
    }
    lose()
    for (const { host } of twins) {
      await refused(host.attend(0, { queries: queriesAt(seq, 1) }), 'device_lost')
      await refused(host.append(0, rows(seq, 300, 310)), 'device_lost')
    }
    const next = new Engine(backend())
    const full = new Proxy(backend(), {
      get: (target, key) =>
        key === 'alloc'
          ? async () => {
              throw new ParisError('out_of_memory', { where: 'a test', got: 'no room', want: 'some', fix: 'none' })
            }
          : Reflect.get(target, key),
    })
    const held = pages.tiers.map((tier) => tier.bytes())
    expect(held.every((bytes) => bytes > 0)).toBe(true)
    for (const { host } of twins) await refused(new Engine(full).recover(host), 'out_of_memory')
    await refused(next.recover(undefined as unknown as Session), 'bad_config')
    for (const [i, { host, device }] of twins.entries()) {
      await refused(next.recover(device), 'device_lost')
      const recovered = await next.recover(host)
      expect(host.disposed).toBe(true)
      const want = await next.restore(new Blob([files[i].slice()]).stream())
      await expectSameState(recovered, want)
      for (const session of [recovered, want]) await feed(session, seq, 300, 330, 7)
      await expectSameStep({ host: recovered, device: want }, queriesAt(seq, 330))
      await refused(next.recover(host), 'disposed')
      expect(pages.tiers.length, 'pages are taken over, not copied').toBe(twins.length)
      expect(pages.tiers[i].bytes()).toBeGreaterThanOrEqual(held[i])
      await recovered.dispose()
      expect(pages.tiers[i].bytes()).toBe(0)
    }
    await engine.dispose()
  })
  it('gives its pages back, and its engine ends, on a lost device as well', async () => {
    const { backend: fragile, lose } = losable(await fresh())
    const pages = watchedPages(() => {})
    const engine = new Engine(fragile, [], pages.open)
    const [{ host }, other] = [await openTwins(engine), await openTwins(engine)]
    for (const session of [host, other.host]) await feed(session, seq, 0, 100, 50)
    lose()
    await host.dispose()
    await engine.dispose()
    expect(other.host.disposed).toBe(true)
    expect(pages.tiers.map((tier) => tier.bytes())).toEqual([0, 0])
  })
})
