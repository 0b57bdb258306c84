import { expect, it } from 'vitest'
import type { MemoryPages } from '../../sdk/cache/pages.ts'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { ParisError } from '../../sdk/errors.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { bufferOf, contentsOf, stepOf as gpuStepOf, roomOf, tokenOf } from '../support/gpu-tensors.ts'
import { openTwins, turns, watchedPages } from '../support/offload.ts'
import { expectSame } from '../support/repeat.ts'
import { feed, options, queriesAt, refused, refusedUnchanged, rows, sequence } from '../support/sessions.ts'

const LAYERS = 2
const PROMPT = 70
const seq = sequence(811, 500)
const policy: PolicyOptions = { k: 5, sink: 2, local: 6, update: 3, denseBelow: 20 }
const OUT = 4 * seq.d * 4

onEveryBackend('a step in two submits', (backend, name) => {
  const open = (pages?: (bytes: number) => MemoryPages) => new Engine(backend(), [], pages)
  if (name !== 'webgpu') {
    it('is refused', async () => {
      const session = await open().createSession(options({ store: 'f32' }, { offload: 'always' }))
      const buffer = {} as GPUBuffer
      await refused(session.attendFrom(0, { queries: buffer, output: buffer }), 'backend_unavailable')
      await session.reserve(2)
      await refused(session.reserve(-1), 'bad_length')
      await refused(session.reserve(1e9), 'capacity')
    })
    return
  }
  const gpu = () => open().gpu as GPUDevice
  const buffer = (data: Float32Array) => bufferOf(gpu(), data)
  const room = (bytes: number) => roomOf(gpu(), bytes)
  const contents = (from: GPUBuffer) => contentsOf(gpu(), from)
  const token = (t: number) => tokenOf(gpu(), seq, t)
  const stepOf = (t: number) => gpuStepOf(gpu(), seq, t)
  const prompts = async (...sessions: Session[]) => {
    for (const session of sessions)
      for (let l = 0; l < session.config.shape.layers; l++) await feed(session, seq, 0, PROMPT, PROMPT, l)
  }
  const want = async (session: Session, l: number, t: number) => {
    await session.append(l, rows(seq, t, t + 1))
    return session.attend(l, { queries: queriesAt(seq, t) })
  }

  for (const [store, steps] of [
    ['f32', 16],
    ['bf16', 6],
  ] as const)
    it(`gives the bytes of append and attend, rows of ${store} on the host and on the device`, async () => {
      const over = { layers: LAYERS, store, capacity: 256 }
      const [twins, typed] = [await openTwins(open(), over, policy), await openTwins(open(), over, policy)]
      await prompts(twins.host, twins.device, typed.device)
      for (let t = PROMPT; t < PROMPT + steps; t++)
        for (let l = 0; l < LAYERS; l++) {
          const { output, lse } = await want(typed.device, l, t)
          for (const session of [twins.host, twins.device]) {
            const [out, sums] = [room(OUT), room(16)]
            await session.attendFrom(l, { ...stepOf(t), output: out, lse: sums })
            expectSame(await contents(out), output, `output ${t} ${l}`)
            expectSame((await contents(sums)).subarray(0, 4), lse, `lse ${t} ${l}`)
          }
        }
      expect(twins.host.length(1)).toBe(PROMPT + steps)
      expect(twins.host.stats().calls).toMatchObject({ append: LAYERS * (steps + 1), attend: LAYERS * steps })
      expect((await twins.host.check()).checked).toBeGreaterThan(0)
      // All of it is in the pages: a copy of them elsewhere is the same session.
      const moved = await twins.host.fork({ policy: { ...policy, offload: 'never' } })
      const queries = queriesAt(seq, 499)
      expectSame(
        (await moved.attend(0, { queries })).output,
        (await typed.device.attend(0, { queries })).output,
        'moved',
      )
    }, 120_000)

  it('has rows of any number on the device before the second half runs', async () => {
    const wide = sequence(812, 900, { headDim: 128 })
    const over = { store: 'f32' as const, headDim: 128, capacity: 900 }
    const many = { ...policy, k: 300, hotRows: 300 }
    const twins = await openTwins(open(), over, many)
    for (const session of [twins.host, twins.device]) await feed(session, wide, 0, 880)
    for (const t of [300, 500]) {
      const out = room(4 * 128 * 4)
      const queries = queriesAt(wide, t)
      await twins.host.attendFrom(0, { queries: buffer(queries), output: out })
      expectSame(await contents(out), (await twins.device.attend(0, { queries })).output, `output ${t}`)
    }
    expect(twins.host.stats().offload!.misses).toBeGreaterThan(600)
  }, 120_000)

  it('begins in an empty session, dense at first', async () => {
    const twins = await openTwins(open(), { store: 'f32', capacity: 64 }, policy)
    for (let t = 0; t < 30; t++) {
      const out = room(OUT)
      await twins.host.attendFrom(0, { ...stepOf(t), output: out })
      const { output } = await want(twins.device, 0, t)
      expectSame(await contents(out), output, `output ${t}`)
    }
  }, 120_000)

  it('lets the second half be recorded before the first has run, for sessions together', async () => {
    const engine = open()
    const over = { layers: LAYERS, store: 'bf16' as const, capacity: 256 }
    const [a, b] = [
      await openTwins(engine, over, policy),
      await openTwins(engine, over, { ...policy, coarse: 'collision' }),
    ]
    await prompts(a.host, a.device, b.host, b.device)
    const sessions = [a.host, b.host, b.device]
    for (let t = PROMPT; t < PROMPT + 4; t++) {
      for (const session of sessions) await session.reserve(1)
      const outs = sessions.map(() => room(OUT))
      const [first, second] = [gpu().createCommandEncoder(), gpu().createCommandEncoder()]
      const items = sessions.map((session) => ({ session, layer: 0, ...stepOf(t) }))
      const step = engine.encodeRetrieveBatch(first, items)
      gpu().queue.submit([first.finish()])
      step.encodeAttend(
        second,
        outs.map((output) => ({ output })),
      )
      const commands = second.finish()
      await step.fetch()
      gpu().queue.submit([commands])
      step.release(true)
      const wanted = [await want(a.device, 0, t), undefined, undefined]
      expectSame(await contents(outs[0]), wanted[0]!.output, `a ${t}`)
      expectSame(await contents(outs[1]), await contents(outs[2]), `b ${t}`)
    }
  }, 120_000)

  it('leaves the session as it was where the step is never submitted, or refused', async () => {
    const twins = await openTwins(open(), { store: 'f32', capacity: 256 }, { ...policy, coarse: 'collision' })
    await prompts(twins.host, twins.device)
    const engine = open()
    for (let t = PROMPT; t < PROMPT + 4; t++) {
      await twins.host.reserve(1)
      const encoder = gpu().createCommandEncoder()
      const step = engine.encodeRetrieveBatch(encoder, [{ session: twins.host, layer: 0, ...stepOf(t + 100) }])
      step.release()
      expect(twins.host.length()).toBe(t)
      const keys = rows(seq, t, t + 1).keys.slice()
      keys[3] = Number.NaN
      const bad = { ...stepOf(t), output: room(OUT) }
      await refused(twins.host.attendFrom(0, { ...bad, append: { ...token(t), keys: buffer(keys) } }), 'not_finite')
      expect(twins.host.length()).toBe(t)
      const out = room(OUT)
      await twins.host.attendFrom(0, { ...stepOf(t), output: out })
      expectSame(await contents(out), (await want(twins.device, 0, t)).output, `output ${t}`)
    }
    const two = { ...token(5), tokens: 2 }
    const bad: [object, string][] = [
      [{ queries: room(4), output: room(OUT) }, 'bad_shape'],
      [{ ...stepOf(1), output: room(4) }, 'bad_shape'],
      [{ ...stepOf(1), append: two, output: room(OUT) }, 'bad_shape'],
      [{ output: room(OUT) }, 'bad_dtype'],
    ]
    for (const [input, code] of bad)
      await refusedUnchanged(twins.host, () => twins.host.attendFrom(0, input as never), code as never)
    await refused(twins.host.attendFrom(7, { ...stepOf(1), output: room(OUT) }), 'bad_layer')
    await refused(() => engine.encodeRetrieveBatch(gpu().createCommandEncoder(), []), 'bad_config')
    // A recording that nothing has made room for, and one that another append has overtaken.
    await twins.host.reserve(1)
    const encoder = gpu().createCommandEncoder()
    const late = engine.encodeRetrieveBatch(encoder, [{ session: twins.host, layer: 0, ...stepOf(90) }])
    gpu().queue.submit([encoder.finish()])
    await feed(twins.host, seq, PROMPT + 4, PROMPT + 5)
    await feed(twins.device, seq, PROMPT + 4, PROMPT + 5)
    await refused(late.fetch(), 'busy')
    late.release(true)
    const queries = queriesAt(seq, 400)
    expectSame(
      (await twins.host.attend(0, { queries })).output,
      (await twins.device.attend(0, { queries })).output,
      'after',
    )
  }, 120_000)

  it('takes a token back whose pages fail, and says so where there is no room', async () => {
    let fails = ''
    const { open: pages } = watchedPages(async ({ kind }) => {
      await turns(2)
      if (kind === fails) throw new ParisError('out_of_memory', { where: 'a test', got: '1', want: '0', fix: 'none' })
    })
    const engine = new Engine(backend(), [], pages)
    const host = await engine.createSession(
      options({ store: 'f32', capacity: 256 }, { ...policy, hotRows: 5, offload: 'always' }),
    )
    await feed(host, seq, 0, 64)
    const call = (t: number) => host.attendFrom(0, { ...stepOf(t), output: room(OUT) })
    for (const kind of ['take', 'scatter', 'gather']) {
      fails = kind
      await refused(call(64), 'out_of_memory')
      expect(host.length()).toBe(64)
    }
    fails = ''
    await call(64)
    expect(host.length()).toBe(65)
    await host.check()
  }, 120_000)

  it('runs in call order with what else is called', async () => {
    const twins = await openTwins(open(), { store: 'f32', capacity: 256 }, policy)
    await prompts(twins.host, twins.device)
    const outs = Array.from({ length: 6 }, () => room(OUT))
    const calls = outs.map((output, i) => twins.host.attendFrom(0, { ...stepOf(PROMPT + i), output }))
    const last = twins.host.attend(0, { queries: queriesAt(seq, 300) })
    await Promise.all(calls)
    for (const [i, out] of outs.entries())
      expectSame(await contents(out), (await want(twins.device, 0, PROMPT + i)).output, `output ${i}`)
    expectSame((await last).output, (await twins.device.attend(0, { queries: queriesAt(seq, 300) })).output, 'last')
    const gone = twins.host.attendFrom(0, { ...stepOf(1), output: outs[0] })
    await twins.host.dispose()
    await gone
    await refused(twins.host.attendFrom(0, { ...stepOf(1), output: outs[0] }), 'disposed')
  }, 120_000)
})
