import { describe, expect, it } from 'vitest'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import type { CallOptions, Progress } from '../../sdk/calls.ts'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import {
  expectSameState,
  feed,
  options,
  queriesAt,
  refused,
  rows,
  sequence,
  stateOf,
  tokensOf,
} from '../support/sessions.ts'

/** Runs a call that is aborted at its n-th report, and checks that the session is to the byte as before. */
async function abortedAt(session: Session, report: number, call: (options: CallOptions) => Promise<unknown>) {
  const before = await stateOf(session)
  const stats = session.stats()
  const stop = new AbortController()
  const reason = new Error('enough')
  let reports = 0
  const lengths: number[] = []
  const onProgress = () => {
    lengths.push(session.length(), session.stats().layers[0].length)
    if (++reports === report) stop.abort(reason)
  }
  const error = await refused(call({ signal: stop.signal, onProgress }), 'aborted')
  expect([error.name, error.cause, reports]).toEqual(['AbortError', reason, report])
  expect(new Set(lengths)).toEqual(new Set([stats.layers[0].length]))
  const after = await stateOf(session)
  expect(Object.keys(after)).toEqual(Object.keys(before))
  for (const [name, bytes] of Object.entries(before)) expectSame(after[name], bytes, name)
  expect(session.stats()).toEqual(stats)
}

onEveryBackend('abort', (backend) => {
  const seq = sequence(151, 700)
  const engine = () => new Engine(backend())
  const open = async (n: number, policy: PolicyOptions = {}) => {
    const session = await engine().createSession(options({ capacity: 700 }, policy))
    await feed(session, seq, 0, n)
    return session
  }
  const prompt = (from: number, to: number) => ({
    ...rows(seq, from, to),
    queries: tokensOf(seq.queries, 700, 16, from, to),
  })

  it('before the start changes nothing', async () => {
    const session = await open(50)
    const before = await stateOf(session)
    const reason = new Error('never mind')
    const given = { signal: AbortSignal.abort(reason) }
    const queries = queriesAt(seq, 0)
    for (const call of [
      () => session.append(0, rows(seq, 50, 60), given),
      () => session.prefill(0, prompt(50, 60), given),
      () => session.attend(0, { queries }, given),
      () => session.retrieve(0, { queries }, given),
      () => engine().attendBatch([{ session, layer: 0, queries }], given),
      () => engine().appendBatch([{ session, layer: 0, ...rows(seq, 50, 60) }], given),
      () => engine().createSession(options(), given),
    ]) {
      const error = await refused(call, 'aborted')
      expect([error.name, error.cause]).toEqual(['AbortError', reason])
    }
    expect(await stateOf(session)).toEqual(before)
    expect(session.stats().calls).toEqual({ append: 1, prefill: 0, attend: 0, retrieve: 0 })
  })

  it('while a call waits for its turn changes nothing', async () => {
    const session = await open(50)
    const stop = new AbortController()
    const first = session.append(0, rows(seq, 50, 80))
    const waiting = [
      refused(session.append(0, rows(seq, 80, 90), { signal: stop.signal }), 'aborted'),
      refused(session.attend(0, { queries: queriesAt(seq, 0) }, { signal: stop.signal }), 'aborted'),
    ]
    stop.abort()
    await Promise.all([first, ...waiting])
    await expectSameState(session, await open(80))
  })

  it.each<PolicyOptions>([{}, { coarse: 'collision' }, { normWeighted: true }])(
    'in a prefill or a batch rolls back: %o',
    async (policy) => {
      const session = await open(77, policy)
      await abortedAt(session, 1, (given) => session.prefill(0, prompt(77, 600), given))
      await abortedAt(session, 2, (given) => session.prefill(0, prompt(77, 600), given))
      const batch = [0, 1, 2].map((i) => ({ session, layer: 0, ...rows(seq, 77 + 50 * i, 127 + 50 * i) }))
      await abortedAt(session, 2, (given) => engine().appendBatch(batch, given))
      await feed(session, seq, 77, 300)
      await expectSameState(session, await open(300, policy))
    },
  )

  it('in a first append leaves the session as if new', async () => {
    const session = await open(0)
    const allocated = backend().allocated()
    await abortedAt(session, 1, (given) => session.prefill(0, prompt(0, 600), given))
    expect([session.memory().total, session.stats().store]).toEqual([0, undefined])
    expect(backend().allocated()).toBe(allocated)
    const half = (x: Float32Array) => ({ dtype: 'bf16' as const, data: new Uint16Array(x.length) })
    const { keys, values } = rows(seq, 0, 9)
    await session.append(0, { keys: half(keys), values: half(values) })
    expect(session.stats().store).toBe('bf16')
  })

  it('at the last report comes too late: the call completes', async () => {
    const session = await open(0)
    const stop = new AbortController()
    const onProgress = ({ done, total }: Progress) => done === total && stop.abort()
    await session.append(0, rows(seq, 0, 100), { signal: stop.signal, onProgress })
    expect(session.length()).toBe(100)
  })

  it('rolls back too when a report throws', async () => {
    const session = await open(30)
    const onProgress = () => {
      throw new RangeError('mine')
    }
    await expect(session.prefill(0, prompt(30, 400), { onProgress })).rejects.toThrow('mine')
    await expectSameState(session, await open(30))
  })

  it('is not needed to see progress: it rises to the total', async () => {
    const session = await open(0)
    const reports: Progress[] = []
    const onProgress = (progress: Progress) => reports.push(progress)
    await session.prefill(0, prompt(0, 600), { onProgress })
    expect(reports.map(({ done }) => done)).toEqual([256, 512, 600])
    expect(new Set(reports.map(({ total, unit }) => `${total} ${unit}`))).toEqual(new Set(['600 tokens']))
    await session.append(0, rows(seq, 600, 610), { onProgress })
    expect(reports.at(-1)).toEqual({ done: 10, total: 10, unit: 'tokens' })
  })
})

describe('a failed append', () => {
  it('throws what failed first where going back fails too', async () => {
    const backend = createReferenceBackend()
    const encode = backend.encode
    let failures = 0
    backend.encode = (jobs) => {
      if (failures > 0) throw new Error(`failure ${failures++}`)
      encode(jobs)
    }
    const session = await new Engine(backend).createSession(options({}, { coarse: 'collision' }))
    const seq = sequence(153, 300)
    await feed(session, seq, 0, 100)
    failures = 1
    await expect(session.append(0, rows(seq, 100, 200))).rejects.toThrow('failure 1')
    expect([failures, session.length()]).toEqual([3, 100])
  })
})

describe('abort of a long append', () => {
  it('rolls back, and without it progress rises to the total', async () => {
    const long = sequence(152, 10_000, { kvHeads: 1, queryHeads: 1, headDim: 8 })
    const engine = new Engine(createReferenceBackend())
    const shape = { kvHeads: 1, queryHeads: 1, headDim: 8, capacity: 10_000 }
    const session = await engine.createSession(options(shape, { coarse: 'collision' }))
    await feed(session, long, 0, 100)
    for (const report of [1, 2])
      await abortedAt(session, report, (given) => session.append(0, rows(long, 100, 10_000), given))
    const done: number[] = []
    await session.append(0, rows(long, 100, 10_000), { onProgress: (p) => done.push(p.done) })
    expect(done).toEqual([4096, 8192, 9900])
    expect(session.length()).toBe(10_000)
  })
})
