import { expect, it } from 'vitest'
import type { PolicyOptions, SessionOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { bufferOf, contentsOf, roomOf, stepOf, tokenOf } from '../support/gpu-tensors.ts'
import { expectSameStep, openTwins, watchedPages } from '../support/offload.ts'
import { expectSame } from '../support/repeat.ts'
import {
  expectSameState,
  feed,
  options,
  queriesAt,
  refused,
  refusedUnchanged,
  rows,
  type Sequence,
  sequence,
  snapshotOf,
} from '../support/sessions.ts'

const PROMPT = 70
const seq = sequence(811, 500)
/** The same with keys that grow longer. */
const growing: Sequence = {
  ...seq,
  keys: seq.keys.map((x, i) => x * 2 ** (Math.max(0, (Math.floor(i / seq.d) % seq.n) - 50) / 2)),
}
const policy: PolicyOptions = { k: 5, sink: 2, local: 6, update: 3, denseBelow: 20 }
const OUT = 4 * seq.d * 4

onEveryBackend('between the halves of a step', (backend, name) => {
  if (name !== 'webgpu') return it('is of a GPU alone', () => expect(backend().recorder).toBeUndefined())
  const engine = () => new Engine(backend())
  const gpu = () => engine().gpu as GPUDevice
  const twinsOf = async (over: Partial<SessionOptions> = {}, more: PolicyOptions = {}) => {
    const twins = await openTwins(engine(), { store: 'f32', capacity: 256, ...over }, { ...policy, ...more })
    for (const session of [twins.host, twins.device])
      for (let l = 0; l < (over.layers ?? 1); l++) await feed(session, seq, 0, PROMPT, PROMPT, l)
    return twins
  }
  /** The first half of a step, submitted. */
  const begin = (input: object, ...sessions: Session[]) => {
    const encoder = gpu().createCommandEncoder()
    const items = sessions.map((session) => ({ session, layer: 0, ...input }))
    const step = engine().encodeRetrieveBatch(encoder, items as never)
    gpu().queue.submit([encoder.finish()])
    return step
  }

  it.each([
    ['counts', { coarse: 'collision' as const }],
    ['norms', { normWeighted: true }],
  ])(
    'the session may be read, whose %s are made anew for that',
    async (_, more) => {
      const { host, device } = await openTwins(engine(), { store: 'f32', capacity: 256 }, { ...policy, ...more })
      for (const session of [host, device]) await feed(session, growing, 0, PROMPT)
      for (let t = PROMPT; t < PROMPT + 6; t++) {
        await host.reserve(1)
        const step = begin(stepOf(gpu(), growing, t), host)
        if (t % 2 === 0) await host.attend(0, { queries: queriesAt(seq, 300) })
        else await snapshotOf(host)
        const [output, second] = [roomOf(gpu(), OUT), gpu().createCommandEncoder()]
        step.encodeAttend(second, [{ output }])
        await step.fetch()
        gpu().queue.submit([second.finish()])
        step.release(true)
        await device.append(0, rows(growing, t, t + 1))
        const wanted = await device.attend(0, { queries: queriesAt(seq, t) })
        expectSame(await contentsOf(gpu(), output), wanted.output, `output ${t}`)
        await expectSameState(host, device)
      }
    },
    120_000,
  )

  it('a truncation, an append or new places let the fetch be refused, and nothing else changes', async () => {
    const { host, device } = await twinsOf({}, { coarse: 'collision' })
    const queries = bufferOf(gpu(), queriesAt(seq, 300))
    const without = begin({ queries }, host)
    for (const session of [host, device]) await session.truncate(24)
    await refused(without.fetch(), 'busy')
    without.release(true)
    await expectSameState(host, device)

    await host.reserve(1)
    const overtaken = begin(stepOf(gpu(), seq, 90), host)
    for (const session of [host, device]) await feed(session, seq, 24, 25)
    await refused(overtaken.fetch(), 'busy')
    overtaken.release(true)
    await expectSameState(host, device)

    for (const session of [host, device]) await feed(session, seq, 25, 45)
    await host.reserve(1)
    const moved = begin(stepOf(gpu(), seq, 45), host)
    await host.reserve(100)
    await refused(moved.fetch(), 'busy')
    moved.release(true)
    for (const session of [host, device]) await feed(session, seq, 45, 60)
    await expectSameState(host, device)
    const wanted = await device.attend(0, { queries: queriesAt(seq, 61) })
    expectSame((await host.attend(0, { queries: queriesAt(seq, 61) })).output, wanted.output, 'after')
  }, 120_000)

  it('a step is fetched once, and not after its release', async () => {
    const { host, device } = await twinsOf()
    const output = roomOf(gpu(), OUT)
    for (const session of [host, device]) {
      await session.reserve(1)
      const step = begin(stepOf(gpu(), seq, PROMPT), session)
      await refused(() => step.encodeAttend(undefined as never, [{ output }]), 'bad_dtype')
      await step.fetch()
      await refused(step.fetch(), 'bad_config')
      step.release(true)
      await refused(step.fetch(), 'bad_config')
      await refused(() => step.encodeAttend(gpu().createCommandEncoder(), [{ output }]), 'bad_config')
      expect(session.length()).toBe(PROMPT + 1)
      expect(session.stats().calls).toMatchObject({ append: 2, attend: 1 })
    }
    await host.reserve(1)
    const dropped = begin(stepOf(gpu(), seq, PROMPT + 1), host)
    dropped.release(true)
    await refused(dropped.fetch(), 'bad_config')
    await expectSameState(host, device)
  }, 120_000)

  it('of two tokens recorded for one place the first is refused, and one that lands late leaves no trace', async () => {
    const { host, device } = await twinsOf({}, { local: 0, update: 1 })
    await host.reserve(1)
    const [first, second] = [200, PROMPT].map((t) => begin(stepOf(gpu(), seq, t), host))
    await refused(first.fetch(), 'busy')
    await second.fetch()
    await feed(device, seq, PROMPT, PROMPT + 1)

    await host.reserve(1)
    const encoder = gpu().createCommandEncoder()
    const late = engine().encodeRetrieveBatch(encoder, [{ session: host, layer: 0, ...stepOf(gpu(), seq, 210) }])
    for (const session of [host, device]) await feed(session, seq, PROMPT + 1, PROMPT + 2)
    gpu().queue.submit([encoder.finish()])
    await refused(late.fetch(), 'busy')
    for (const step of [first, second, late]) step.release(true)
    for (let t = 300; t < 306; t++) await expectSameStep({ host, device }, queriesAt(seq, t), 0, `of ${t}`)
    await expectSameState(host, device)
  }, 120_000)

  it('a session may go: the second half is refused', async () => {
    const { host } = await twinsOf()
    const step = begin({ queries: bufferOf(gpu(), queriesAt(seq, 300)) }, host)
    await host.dispose()
    await refused(step.fetch(), 'disposed')
    const output = roomOf(gpu(), OUT)
    await refused(() => step.encodeAttend(gpu().createCommandEncoder(), [{ output }]), 'disposed')
    step.release(true)
  })

  it('tokens of all sessions are taken back where one is refused', async () => {
    const { host, device } = await twinsOf({}, { coarse: 'collision' })
    const same = await twinsOf({}, { coarse: 'collision' })
    for (let t = PROMPT; t < PROMPT + 4; t++) {
      await host.reserve(1)
      const keys = rows(seq, t, t + 1).keys.slice()
      keys[3] = Number.NaN
      const bad = stepOf(gpu(), seq, t)
      const [encoder, good] = [gpu().createCommandEncoder(), stepOf(gpu(), seq, t)]
      const step = engine().encodeRetrieveBatch(encoder, [
        { session: device, layer: 0, ...good },
        { session: host, layer: 0, ...bad, append: { ...bad.append, keys: bufferOf(gpu(), keys) } },
      ])
      gpu().queue.submit([encoder.finish()])
      await refused(step.fetch(), 'not_finite')
      step.release(true)
      expect(device.length()).toBe(t)
      expect(device.stats().calls).toEqual(same.device.stats().calls)
      for (const session of [host, device, same.device]) await feed(session, seq, t, t + 1)
      await expectSameState(device, same.device)
      await expectSameState(host, same.device)
      // What was refused is stored nowhere.
      expect(await host.check()).toMatchObject({ ok: true, refused: 0 })
    }
  }, 120_000)

  it('a token does not count yet', async () => {
    const lengths: number[] = []
    let host: Session | undefined
    const { open } = watchedPages(({ kind }) => {
      if (kind !== 'take' && host) lengths.push(host.length(), host.stats().layers[0].length)
    })
    const watched = new Engine(backend(), [], open)
    const session = await watched.createSession(
      options({ store: 'f32', capacity: 256 }, { ...policy, hotRows: 5, offload: 'always' }),
    )
    await feed(session, seq, 0, PROMPT)
    host = session
    await session.attendFrom(0, { ...stepOf(gpu(), seq, PROMPT), output: roomOf(gpu(), OUT) })
    host = undefined
    expect(lengths.length).toBeGreaterThan(2)
    expect(new Set(lengths)).toEqual(new Set([PROMPT]))
    expect(session.length()).toBe(PROMPT + 1)
  })
})

onEveryBackend('a step from GPUBuffers', (backend, name) => {
  if (name !== 'webgpu') return it('is of a GPU alone', () => expect(backend().recorder).toBeUndefined())
  const gpu = () => backend().recorder!.device

  it('fills every layer to the last token', async () => {
    const { host, device } = await openTwins(
      new Engine(backend()),
      { layers: 2, store: 'f32', capacity: PROMPT + 1 },
      policy,
    )
    for (const session of [host, device]) {
      for (const l of [0, 1]) await feed(session, seq, 0, PROMPT, PROMPT, l)
      const call = (l: number) => session.attendFrom(l, { ...stepOf(gpu(), seq, PROMPT), output: roomOf(gpu(), OUT) })
      for (const l of [0, 1]) await call(l)
      expect((await refused(call(1), 'capacity')).where).toContain('attendFrom')
    }
    await expectSameState(host, device)
  })

  it('refuses keys and values that nothing can be copied from, and goes on', async () => {
    const { host } = await openTwins(new Engine(backend()), { store: 'f32', capacity: 256 }, policy)
    await feed(host, seq, 0, PROMPT)
    const token = tokenOf(gpu(), seq, PROMPT)
    const step = { ...stepOf(gpu(), seq, PROMPT), output: roomOf(gpu(), OUT) }
    const keys = bufferOf(gpu(), rows(seq, PROMPT, PROMPT + 1).keys, 0x80 | 0x08)
    await refusedUnchanged(host, () => host.attendFrom(0, { ...step, append: { ...token, keys } }), 'bad_dtype')
    await host.attendFrom(0, step)
    expect(host.length()).toBe(PROMPT + 1)
  })

  it('is audited wherever the rows are', async () => {
    const twins = await openTwins(new Engine(backend()), { store: 'f32', capacity: 256 }, { ...policy, auditEvery: 2 })
    for (const session of [twins.host, twins.device]) {
      await feed(session, seq, 0, PROMPT)
      for (let t = PROMPT; t < PROMPT + 4; t++)
        await session.attendFrom(0, { ...stepOf(gpu(), seq, t), output: roomOf(gpu(), OUT) })
      expect(session.stats().recall.audits).toBe(2)
    }
    expect(twins.host.stats().recall).toEqual(twins.device.stats().recall)
  })
})
