import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'
import { integer, random } from '../support/inputs.ts'
import {
  delayed,
  expectOffloaded,
  expectSameRetrieval,
  expectSameStep,
  openTwins,
  turns,
  watchedPages,
} from '../support/offload.ts'
import { expectSame } from '../support/repeat.ts'
import { expectSameState, feed, options, queriesAt, refused, sequence } from '../support/sessions.ts'

const STEPS = process.env.PARISKV_TEST === 'full' ? 3000 : 200
/** A software GPU takes a second for a handful of steps. */
const TIMEOUT = 900_000

onEveryBackend('offload', (backend, name) => {
  const steps = name === 'webgpu' && STEPS < 3000 ? 24 : STEPS
  const seq = sequence(301, 200 + STEPS)

  it(
    'attends to the same bytes as without it, step by step, over layers',
    async () => {
      const twins = await openTwins(new Engine(backend()), { layers: 2, capacity: 200 + STEPS, store: 'bf16' })
      for (const session of [twins.host, twins.device])
        for (const layer of [0, 1]) await feed(session, seq, 0, 200, 90, layer)
      for (let t = 200; t < 200 + steps; t++)
        for (const layer of [0, 1]) {
          for (const session of [twins.host, twins.device]) await feed(session, seq, t, t + 1, 1, layer)
          await expectSameStep(twins, queriesAt(seq, t - layer), layer, `of step ${t}, layer ${layer}`)
        }
      await expectSameRetrieval(twins, seq, 100)
      await expectSameState(twins.host, twins.device)
      expectOffloaded(twins.host)
      const { offload } = twins.host.stats()
      expect(offload!.hits + offload!.misses).toBe(2 * steps * 2 * 8)
      expect(offload!.hits).toBeGreaterThan(0)
      expect(offload!.misses).toBeGreaterThan(0)
      expect(twins.device.stats().offload).toBeUndefined()
      for (const session of [twins.host, twins.device]) await session.dispose()
    },
    TIMEOUT,
  )

  it(
    'does so in the short and dense beginning too',
    async () => {
      const twins = await openTwins(new Engine(backend()), {}, { denseBelow: 70 })
      for (let t = 0; t < 120; t++) {
        for (const session of [twins.host, twins.device]) await feed(session, seq, t, t + 1)
        if (name !== 'webgpu' || t % 8 === 0) await expectSameStep(twins, queriesAt(seq, t), 0, `at ${t}`)
      }
    },
    TIMEOUT,
  )

  it(
    'serves batches of sessions with and without it, with appends in between and reads that come late',
    async () => {
      const next = random(7)
      const late = () => integer(next, 0, 2)
      const pages = watchedPages(() => turns(late()))
      const engine = new Engine(delayed(backend(), late), [], pages.open)
      const all = await Promise.all([
        openTwins(engine),
        openTwins(engine, { store: 'f16', headDim: 24 }, { group: 'max' }),
        openTwins(engine, {}, { coarse: 'collision', sink: 0, local: 0, update: 1, hotRows: 8 }),
      ])
      const seqs = all.map(({ host }, i) => sequence(311 + i, 300, host.config.shape))
      const sessions = all.flatMap(({ host, device }, i) =>
        [host, device].map((session) => ({ session, seq: seqs[i] })),
      )
      await Promise.all(sessions.map(({ session, seq }, i) => feed(session, seq, 0, 150 + 20 * (i >> 1), 70)))
      for (let t = 200; t < 200 + Math.min(60, steps); t++) {
        const attends = engine.attendBatch(
          sessions.map((one) => ({ ...one, layer: 0, queries: queriesAt(one.seq, t) })),
        )
        const appends = sessions.map(({ session, seq }) => feed(session, seq, t, t + 1 + (t % 3)))
        const again = sessions.map(({ session, seq }) => session.attend(0, { queries: queriesAt(seq, t - 9) }))
        const [results] = await Promise.all([attends, ...appends])
        const then = await Promise.all(again)
        for (const got of [results, then])
          for (let i = 0; i < got.length; i += 2) {
            expectSame(got[i].output, got[i + 1].output, `output ${t} of pair ${i / 2}`)
            expectSame(got[i].lse, got[i + 1].lse, `lse ${t} of pair ${i / 2}`)
          }
      }
      for (const { host, device } of all) await expectSameState(host, device)
    },
    TIMEOUT,
  )

  it('holds on the device what does not grow but for the summary', async () => {
    const engine = new Engine(backend())
    const { host, device } = await openTwins(engine, { store: 'f32' })
    const at: number[] = []
    for (let t = 0; t < 500; t += 50) {
      await feed(host, seq, t, t + 50)
      await host.attend(0, { queries: queriesAt(seq, t) })
      const { total, pages = 0 } = host.memory()
      at.push(total - pages)
    }
    expect(new Set(at).size).toBe(1)
    const long = (capacity: number, offload: 'always' | 'never') =>
      engine.estimate(options({ store: 'f32', capacity }, { hotRows: 12, offload }))
    const [a, b] = [long(1 << 16, 'always'), long(1 << 17, 'always')]
    expect([b.rows, b.hot]).toEqual([a.rows, a.hot])
    expect(b.pages).toBe(2 * a.pages!)
    expect(b.summary).toBe(long(1 << 17, 'never').summary)
    expect(host.memory().summary).toBe(device.memory().summary)
    expect(host.memory().pages).toBeLessThanOrEqual(long(512, 'always').pages!)
  })

  it('refuses to be recorded', async ({ skip }) => {
    skip(name !== 'webgpu', 'only webgpu records')
    const engine = new Engine(backend())
    const session = await engine.createSession(options({ store: 'f32' }, { offload: 'always' }))
    const encoder = engine.gpu!.createCommandEncoder()
    const buffer = engine.gpu!.createBuffer({ size: 4096, usage: 0x80 })
    const input = { keys: buffer, values: buffer, tokens: 1, queries: buffer, output: buffer }
    await refused(() => session.encodeAppend(encoder, 0, input), 'offload_needs_submit')
    await refused(() => session.encodeAttend(encoder, 0, input), 'offload_needs_submit')
    await refused(() => session.encodePrefill(encoder, 0, input), 'offload_needs_submit')
    await feed(session, seq, 0, 3)
    expect(session.length()).toBe(3)
    buffer.destroy()
  })
})
