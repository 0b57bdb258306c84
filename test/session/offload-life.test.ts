import fc from 'fast-check'
import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { backendCases, onEveryBackend } from '../support/backends.ts'
import { expectOffloaded, expectSameRetrieval, expectSameStep, openTwins } from '../support/offload.ts'
import { anyCall, anyOptions, play } from '../support/random-calls.ts'
import { expectNear, expectSame } from '../support/repeat.ts'
import {
  expectSameState,
  feed,
  NEAR,
  queriesAt,
  rows,
  type Sequence,
  sequence,
  snapshotOf,
  streamOf,
  tokensOf,
} from '../support/sessions.ts'

/** Minutes on a software GPU. */
const TIMEOUT = 900_000

onEveryBackend('the life of an offloaded session', (backend, name) => {
  const seq = sequence(321, 400)
  const other = sequence(322, 400)
  const engine = () => new Engine(backend())

  const prompt = (from: number, to: number, of: Sequence = seq) => ({
    ...rows(of, from, to),
    queries: tokensOf(of.queries, of.n, of.d, from, to),
  })

  it(
    'truncates, into the zone on the host as well, and goes on the same',
    async () => {
      for (const policy of [{}, { coarse: 'collision' }, { normWeighted: true }] as const) {
        const twins = await openTwins(engine(), {}, { ...policy, hotRows: 64 })
        const both = [twins.host, twins.device]
        const looks = name === 'webgpu' ? 3 : 12
        for (const session of both) await feed(session, seq, 0, 300, 77)
        for (let t = 0; t < looks; t++) await expectSameStep(twins, queriesAt(seq, 300 + t))
        for (const [length, to] of [
          [290, 299],
          [200, 260],
          [31, 140],
          [2, 90],
        ]) {
          for (const session of both) await session.truncate(length)
          if (name !== 'webgpu') await expectSameStep(twins, queriesAt(seq, length), 0, `cut to ${length}`)
          // Other tokens than before: what the device still holds of those must not be taken for them.
          for (const session of both) await feed(session, other, length, to, 13)
          for (let t = 0; t < looks; t++)
            await expectSameStep(twins, queriesAt(seq, to + t), 0, `cut to ${length}, then ${to}`)
        }
        await expectSameState(twins.host, twins.device)
        expect(await twins.host.check()).toMatchObject({ ok: true })
      }
    },
    TIMEOUT,
  )

  it(
    'forks, to another policy and off the host as well, and neither sees the other go on',
    async () => {
      const twins = await openTwins(engine())
      for (const session of [twins.host, twins.device]) await feed(session, seq, 0, 200, 50)
      await expectSameStep(twins, queriesAt(seq, 200))
      const same = { host: await twins.host.fork(), device: await twins.device.fork() }
      const off = await twins.host.fork({ policy: { ...twins.host.config.policy, offload: 'never' } })
      const on = await twins.device.fork({ policy: { ...twins.device.config.policy, offload: 'always' } })
      expectOffloaded(on)
      expect(off.memory().pages).toBeUndefined()
      await expectSameState(off, twins.device)
      await expectSameState(on, twins.device)
      for (const session of [twins.host, twins.device]) await feed(session, seq, 200, 260)
      for (const session of [same.host, same.device]) await feed(session, seq, 250, 300)
      await expectSameStep(twins, queriesAt(seq, 260))
      await expectSameStep(same, queriesAt(seq, 300))
      await twins.host.dispose()
      for (const session of [same.host, same.device]) await session.truncate(120)
      await expectSameStep(same, queriesAt(seq, 120))
      await expectSameState(same.host, same.device)
      const policy = { ...same.host.config.policy, local: 5, update: 3, coarse: 'collision' } as const
      const moved = {
        host: await same.host.fork({ policy }),
        device: await same.device.fork({ policy: { ...policy, offload: 'never' } }),
      }
      await expectSameStep(moved, queriesAt(seq, 121))
      await expectSameState(moved.host, moved.device)
    },
    TIMEOUT,
  )

  it(
    'writes the snapshot that a session on the device writes, and is restored to either',
    async () => {
      const twins = await openTwins(engine(), { layers: 2, store: 'f16' })
      for (const session of [twins.host, twins.device])
        for (const layer of [0, 1]) await feed(session, seq, 0, 250 - 60 * layer, 70, layer)
      const file = await snapshotOf(twins.host)
      expectSame(file, await snapshotOf(twins.device), 'snapshot')
      const host = await engine().restore(streamOf(file, 999), { placement: { offload: 'always', hotRows: 9 } })
      const device = await engine().restore(streamOf(file, 999))
      expectOffloaded(host)
      expect(device.memory().pages).toBeUndefined()
      for (const session of [host, device]) await feed(session, seq, 190, 240, 50, 1)
      await expectSameStep({ host, device }, queriesAt(seq, 240), 1)
      await expectSameRetrieval({ host, device }, seq, 240, 0)
      await expectSameState(host, device)
    },
    TIMEOUT,
  )

  it(
    'prefills exactly, over rows that are on the host alone',
    async () => {
      const twins = await openTwins(engine())
      const near = NEAR[name] * 8
      for (const [from, to] of [
        [0, 60],
        [60, 200],
        [200, 400],
      ]) {
        const got = await twins.host.prefill(0, prompt(from, to))
        const want = await twins.device.prefill(0, prompt(from, to))
        expectNear(got.output, want.output, near, `output of ${from}..${to}`)
        expectNear(got.lse, want.lse, near, `lse of ${from}..${to}`)
      }
      await expectSameStep(twins, queriesAt(seq, 399))
      await expectSameState(twins.host, twins.device)
    },
    TIMEOUT,
  )

  it(
    'attends to ranges exactly, wherever their rows are',
    async () => {
      const twins = await openTwins(engine())
      for (const session of [twins.host, twins.device]) await feed(session, seq, 0, 400, 100)
      const queries = queriesAt(seq, 7)
      for (const [from, to] of [
        [0, 400],
        [2, 9],
        [50, 300],
        [380, 400],
        [399, 400],
        [30, 30],
      ]) {
        const got = await twins.host.attendRange(0, { queries, from, to })
        const want = await twins.device.attendRange(0, { queries, from, to })
        expectNear(got.output, want.output, NEAR[name] * 8, `output of ${from}..${to}`)
        expectNear(got.lse, want.lse, NEAR[name] * 8, `lse of ${from}..${to}`)
      }
    },
    TIMEOUT,
  )

  it(
    'audits recall as a session on the device does',
    async () => {
      const twins = await openTwins(engine(), {}, { auditEvery: 2 })
      for (const session of [twins.host, twins.device]) await feed(session, seq, 0, 390, 100)
      for (let t = 0; t < 6; t++) await expectSameStep(twins, queriesAt(seq, t))
      await expectSameRetrieval(twins, seq, 9)
      expect(twins.host.stats().recall).toEqual(twins.device.stats().recall)
      expect(twins.host.stats().recall.audits).toBe(3)
    },
    TIMEOUT,
  )
})

onEveryBackend(
  { name: 'any calls on an offloaded session', notOnSoftwareGpu: 'each random shape compiles pipelines of its own' },
  (_, name) => {
    const open = async () => new Engine(await backendCases.find((entry) => entry.name === name)!.open())

    it(
      'give what they give on the device',
      () =>
        fc.assert(
          fc.asyncProperty(
            anyOptions,
            fc.integer({ min: 0, max: 30 }),
            fc.array(anyCall, { minLength: 5, maxLength: 40 }),
            async (given, more, calls) => {
              const one = await open()
              const hotRows = given.policy!.k! + more
              const twin = (offload: 'always' | 'never') =>
                one.createSession({ ...given, policy: { ...given.policy, hotRows, offload } })
              const [host, device] = [await twin('always'), await twin('never')]
              for (const [i, call] of calls.entries()) {
                const [got, want] = await Promise.all(
                  [host, device].map((session) => play(one, session, call).catch((error) => error.code as string)),
                )
                if (typeof want === 'string') expect(got).toBe(want)
                else
                  for (const [j, array] of want.entries()) {
                    const what = `result ${j} of call ${i}, ${call.kind}`
                    if (call.kind === 'prefill') expectNear(got[j] as typeof array, array, 4e-3, what)
                    else expectSame(got[j] as typeof array, array, what)
                  }
              }
              await expectSameState(host, device)
              expect(await host.check()).toMatchObject({ ok: true })
              await one.dispose()
            },
          ),
          { numRuns: name === 'webgpu' ? 5 : 40 },
        ),
      TIMEOUT,
    )
  },
)
