import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { ParisError } from '../../sdk/errors.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSameStep, openTwins, type PageCall, type Twins, watchedPages } from '../support/offload.ts'
import { expectNear } from '../support/repeat.ts'
import { expectSameState, feed, NEAR, queriesAt, refused, rows, sequence, tokensOf } from '../support/sessions.ts'

/** Minutes on a software GPU. */
const TIMEOUT = 900_000

onEveryBackend('pages of rows that fail or come late', (backend, name) => {
  const seq = sequence(351, 400)
  const other = sequence(352, 400)
  const prompt = (from: number, to: number) => ({
    ...rows(seq, from, to),
    queries: tokensOf(seq.queries, seq.n, seq.d, from, to),
  })

  /** Makes a call that the pages may refuse once: then nothing has changed, and it is made again. */
  async function insist<T>(session: Session, call: () => Promise<T>, kept: () => number): Promise<T> {
    const before = session.length()
    try {
      return await call()
    } catch (error) {
      expect((error as ParisError).got).toBe('a page not read')
      expect(session.length()).toBe(before)
      expect(session.memory().pages).toBe(kept())
      return call()
    }
  }

  /** A life of window moves, truncations and fetches; every call on the device is made on the host too. */
  async function live({ host, device }: Twins): Promise<void> {
    const pages = () => held
    let held = 0
    const both = async <T>(call: (session: Session) => Promise<T>) => {
      held = host.memory().pages ?? 0
      const got = await insist(host, () => call(host), pages)
      return { got, want: await call(device) }
    }
    const step = async (t: number) => {
      const { got, want } = await both((session) => session.attend(0, { queries: queriesAt(seq, t) }))
      expectNear(got.output, want.output, 0, `output of ${t}`)
      expectNear(got.lse, want.lse, 0, `lse of ${t}`)
    }
    await both((session) => session.append(0, rows(seq, 0, 150)))
    await step(150)
    for (const length of [140, 90, 50]) {
      await both((session) => session.truncate(length))
      await step(length)
      const { got, want } = await both((session) => session.retrieve(0, { queries: queriesAt(seq, length) }))
      expect(got).toEqual(want)
    }
    await both((session) => session.truncate(40))
    await both((session) => session.append(0, rows(other, 40, 90)))
    await step(90)
    await both((session) => session.truncate(60))
    const { got, want } = await both((session) => session.prefill(0, prompt(60, 110)))
    expectNear(got.output, want.output, NEAR[name] * 8, 'output of the prefill')
    await both((session) => session.truncate(100))
    const forked = await both(async (session) => {
      const fork = await session.fork()
      try {
        return await fork.attend(0, { queries: queriesAt(seq, 102) })
      } finally {
        await fork.dispose()
      }
    })
    expectNear(forked.got.output, forked.want.output, 0, 'output of the fork')
    await step(101)
  }

  it(
    'once, at whichever call, leave what was there and the same bytes at the next try',
    async () => {
      let calls = 0
      let failing = Number.POSITIVE_INFINITY
      const pages = watchedPages(({ kind }: PageCall) => {
        if (kind === 'take' || calls++ !== failing) return
        throw new ParisError('internal', { where: 'a test', got: 'a page not read', want: 'a page', fix: 'none' })
      })
      const engine = new Engine(backend(), [], pages.open)
      for (const policy of [{ coarse: 'collision' }, { normWeighted: true }] as const) {
        const open = () => openTwins(engine, { store: 'f32' }, policy)
        calls = 0
        failing = Number.POSITIVE_INFINITY
        const whole = await open()
        await live(whole)
        for (const session of [whole.host, whole.device]) await session.dispose()
        const [all, by] = [calls, name === 'webgpu' ? Math.ceil(calls / 3) : 1]
        for (let at = 0; at < all; at += by) {
          const twins = await open()
          calls = 0
          failing = at
          await live(twins)
          expect(calls).toBeGreaterThan(at)
          for (const session of [twins.host, twins.device]) await session.truncate(80)
          for (const session of [twins.host, twins.device]) await feed(session, seq, 80, 120, 9)
          await expectSameStep(twins, queriesAt(seq, 120), 0, `after call ${at} failed`)
          await expectSameState(twins.host, twins.device)
          for (const session of [twins.host, twins.device]) await session.dispose()
        }
      }
      expect(pages.tiers.every((tier) => tier.bytes() === 0)).toBe(true)
    },
    TIMEOUT,
  )

  it('counts the rows that steps send to the device, those sent anew included', async () => {
    let sent = 0
    let fails = false
    const pages = watchedPages(({ kind, rows }) => {
      if (kind !== 'gather') return
      if (fails) throw new ParisError('internal', { where: 'a test', got: 'no page', want: 'a page', fix: 'none' })
      sent += rows
    })
    const { host } = await openTwins(new Engine(backend(), [], pages.open))
    await feed(host, seq, 0, 300, 60)
    sent = 0
    const steps = 12
    for (let t = 0; t < steps; t++) await host.attend(0, { queries: queriesAt(seq, t) })
    const { hits, misses } = host.stats().offload!
    expect(misses).toBe(sent)
    expect(hits + misses).toBe(steps * 2 * 8)
    fails = true
    await host.retrieve(0, { queries: queriesAt(seq, 50) })
    await refused(host.attend(0, { queries: queriesAt(seq, 50) }), 'internal')
    expect(host.stats().offload).toMatchObject({ hits, misses })
  })

  it('break a snapshot beside a truncation as any such snapshot breaks', async () => {
    let gate: Promise<void> | undefined
    let reached = () => {}
    const pages = watchedPages(async ({ kind }) => {
      if (kind !== 'gather' || !gate) return
      reached()
      await gate
    })
    const { host } = await openTwins(new Engine(backend(), [], pages.open), { layers: 2 })
    for (const layer of [0, 1]) await feed(host, seq, 0, 200, 100, layer)
    let release = () => {}
    const waiting = new Promise<void>((resolve) => {
      reached = resolve
    })
    gate = new Promise<void>((resolve) => {
      release = resolve
    })
    const broken = refused(new Response(host.snapshot()).arrayBuffer(), 'snapshot_stale')
    await waiting
    const truncated = host.truncate(10)
    // The pages are gone when the read goes on.
    await Promise.race([truncated, new Promise((resolve) => setTimeout(resolve, 50))])
    gate = undefined
    release()
    await truncated
    await broken
  })
})
