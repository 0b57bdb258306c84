import { expect, it } from 'vitest'
import type { PolicyOptions, SessionOptions } from '../../sdk/config.ts'
import { f32ToBf16 } from '../../sdk/dtype.ts'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import {
  bytesOf,
  expectSameState,
  feed,
  options,
  queriesAt,
  refused,
  rows,
  sequence,
  snapshotOf,
  streamOf,
} from '../support/sessions.ts'
import { headerOf } from '../support/snapshots.ts'

const KINDS: [string, Partial<SessionOptions>, PolicyOptions][] = [
  ['signs', {}, {}],
  ['collision and max', { store: 'f16' }, { coarse: 'collision', group: 'max' }],
  ['norm weights', { store: 'bf16', seed: 7, scale: 0.2 }, { normWeighted: true, beta: 0.2 }],
]

onEveryBackend('snapshot', (backend, name) => {
  /** Tokens an append: a GPU in software is slow. */
  const step = name === 'webgpu' ? 6 : 1
  const engine = () => new Engine(backend())
  const seq = sequence(81, 1000)

  async function open(n: number, over: Partial<SessionOptions> = {}, policy: PolicyOptions = {}) {
    const session = await engine().createSession(options({ capacity: 1000, ...over }, policy))
    await feed(session, seq, 0, n)
    return session
  }

  it.each(KINDS)('restored goes on for 600 tokens as if nothing had happened: %s', async (_, over, policy) => {
    const straight = await open(333, over, policy)
    const restored = await engine().restore(straight.snapshot())
    await expectSameState(restored, straight)
    expect(restored.config).toEqual(straight.config)
    await straight.dispose()
    const [there, back] = [await open(333, over, policy), restored]
    for (let t = 333; t < 933; t += step) {
      await Promise.all([feed(there, seq, t, t + step), feed(back, seq, t, t + step)])
      if ((t - 333) % (20 * step) !== 0 && t < 925) continue
      const input = { queries: queriesAt(seq, t) }
      const [a, b] = [await there.attend(0, input), await back.attend(0, input)]
      expectSame(b.output, a.output, `output at ${t}`)
      expectSame(b.lse, a.lse, `lse at ${t}`)
      const [r, s] = [await there.retrieve(0, input), await back.retrieve(0, input)]
      expectSame(s.indices, r.indices, `indices at ${t}`)
      expectSame(s.scores, r.scores, `scores at ${t}`)
    }
    await expectSameState(back, there)
  })

  it('is the same bytes for the same tokens, and again of what it restores', async () => {
    const [one, two] = [await open(200), await open(0)]
    await feed(two, seq, 0, 200, 7)
    const file = await snapshotOf(one)
    expectSame(await snapshotOf(two), file, 'file')
    for (const chunk of [1, 13, 1 << 20])
      expectSame(await snapshotOf(await engine().restore(streamOf(file, chunk))), file, 'restored file')
  })

  it('names its tensors with canonical shapes', async () => {
    const header = headerOf(await snapshotOf(await open(200, {}, { normWeighted: true })))
    const shapes = Object.fromEntries(
      Object.entries(header).flatMap(([name, entry]) => ('shape' in entry ? [[name, entry.shape]] : [])),
    )
    const z = 176
    expect(shapes).toEqual({
      'layers.0.keys': [2, 200, 16],
      'layers.0.values': [2, 200, 16],
      'layers.0.signs': [2, z, 2],
      'layers.0.magnitudes': [2, z, 3, 2],
      'layers.0.weights': [2, z, 2],
      'layers.0.scales': [2, z],
      'layers.0.norms': [2, z],
      'layers.0.normExp': [2],
    })
  })

  it.each([
    ['never used', {}, 0],
    ['empty with a store', { store: 'bf16' as const }, 0],
    ['of one token', {}, 1],
  ])('of a session %s restores and takes tokens', async (_, over, n) => {
    const session = await open(n, over, { normWeighted: true })
    const restored = await engine().restore(session.snapshot())
    await expectSameState(restored, session)
    expect(restored.stats().store).toBe(session.stats().store)
    await feed(restored, seq, n, 150)
    await expectSameState(restored, await open(150, over, { normWeighted: true }))
  })

  it('of an empty session leaves the store open', async () => {
    const restored = await engine().restore((await open(0)).snapshot())
    const bf16 = (x: Float32Array) => ({ dtype: 'bf16' as const, data: Uint16Array.from(x, f32ToBf16) })
    const { keys, values } = rows(seq, 0, 3)
    await restored.append(0, { keys: bf16(keys), values: bf16(values) })
    expect(restored.stats().store).toBe('bf16')
  })

  it('holds layers of unequal length', async () => {
    const session = await open(0, { layers: 4 }, { coarse: 'collision' })
    for (const [layer, n] of [180, 0, 21, 77].entries()) await feed(session, seq, 0, n, 50, layer)
    const restored = await engine().restore(session.snapshot())
    expect(restored.stats().layers.map(({ length }) => length)).toEqual([180, 0, 21, 77])
    await expectSameState(restored, session)
  })

  it('after refused and rolled back calls is that of what was kept', async () => {
    const session = await open(100)
    await refused(session.append(0, { keys: new Float32Array(3), values: new Float32Array(3) }), 'bad_shape')
    const stop = new AbortController()
    const batch = [0, 1, 2].map((i) => ({ session, layer: 0, ...rows(seq, 100 + 40 * i, 140 + 40 * i) }))
    await refused(engine().appendBatch(batch, { signal: stop.signal, onProgress: () => stop.abort() }), 'aborted')
    await expectSameState(await engine().restore(session.snapshot()), await open(100))
  })

  it('can be taken from several sessions at once', async () => {
    const sessions: Session[] = await Promise.all([50, 100, 150].map((n) => open(n)))
    const files = await Promise.all(sessions.flatMap((s) => [bytesOf(s.snapshot()), bytesOf(s.snapshot())]))
    for (const [i, session] of sessions.entries()) {
      expectSame(files[2 * i], files[2 * i + 1], 'file')
      expectSame(files[2 * i], await snapshotOf(session), 'file')
    }
  })
})
