import { expect, it } from 'vitest'
import { f32ToBf16 } from '../../sdk/dtype.ts'
import { Engine } from '../../sdk/engine.ts'
import type { ErrorCode } from '../../sdk/errors.ts'
import type { TensorInput } from '../../sdk/input.ts'
import { onEveryBackend } from '../support/backends.ts'
import {
  feed,
  options,
  queriesAt,
  refused,
  refusedUnchanged,
  rows,
  sequence,
  snapshotOf,
  tokensOf,
} from '../support/sessions.ts'

onEveryBackend('bad input', (backend) => {
  const seq = sequence(171, 100)
  const engine = () => new Engine(backend())
  const open = async (n = 60) => {
    const session = await engine().createSession(options({ layers: 2 }))
    await feed(session, seq, 0, n)
    return session
  }
  const good = rows(seq, 60, 65)
  const queries = queriesAt(seq, 0)
  const prompt = tokensOf(seq.queries, 100, 16, 60, 65)

  it('of the wrong shape says what it wanted', async () => {
    const session = await open()
    const short = (x: Float32Array) => x.subarray(1)
    const cases: [() => Promise<unknown>, string, string][] = [
      [() => session.append(0, { ...good, keys: short(good.keys) }), 'session.append(keys)', 'a multiple of 32'],
      [
        () => session.append(0, { ...good, values: good.values.subarray(32) }),
        'session.append(values)',
        '[2, 5, 16]: 160',
      ],
      [() => session.append(0, { ...good, values: new Float32Array(0) }), 'session.append(values)', '160'],
      [() => session.prefill(0, { ...good, queries }), 'session.prefill(queries)', '[4, 5, 16]: 320'],
      [() => session.attend(0, { queries: short(queries) }), 'session.attend(queries)', '[4, 1, 16]: 64'],
      [() => session.attend(0, { queries: prompt }), 'session.attend(queries)', '64'],
      [() => session.retrieve(0, { queries: new Float32Array(0) }), 'session.retrieve(queries)', '64'],
    ]
    for (const [call, where, want] of cases) {
      const error = await refusedUnchanged(session, call, 'bad_shape')
      expect(error.where).toBe(where)
      expect(error.got).toMatch(/^\d+ elements$/)
      expect(error.want).toContain(want)
      expect(error.fix).toContain('heads outermost')
    }
  })

  it('of the wrong dtype says what it was', async () => {
    const session = await open()
    const bits = Uint16Array.from(queries, f32ToBf16)
    const cases: [unknown, string][] = [
      [undefined, 'undefined'],
      [null, 'null'],
      [7, '7'],
      ['text', '"text"'],
      [[1, 2], 'Array'],
      [{}, 'Object'],
      [bits, 'Uint16Array'],
      [new Float64Array(64), 'Float64Array'],
      [new ArrayBuffer(256), 'ArrayBuffer'],
      [{ dtype: 'f16', data: queries }, 'dtype "f16" with Float32Array'],
      [{ dtype: 'f32', data: bits }, 'dtype "f32" with Uint16Array'],
      [{ dtype: 'f64', data: new Float64Array(64) }, 'dtype "f64" with Float64Array'],
      [{ dtype: 'bf16' }, 'dtype "bf16" with undefined'],
    ]
    for (const [value, got] of cases) {
      const bad = value as TensorInput
      for (const [call, where] of [
        [() => session.append(0, { ...good, keys: bad }), 'session.append(keys)'],
        [() => session.append(0, { ...good, values: bad }), 'session.append(values)'],
        [() => session.prefill(0, { ...good, queries: bad }), 'session.prefill(queries)'],
        [() => session.attend(0, { queries: bad }), 'session.attend(queries)'],
        [() => session.retrieve(0, { queries: bad }), 'session.retrieve(queries)'],
      ] as const) {
        const error = await refused(call, 'bad_dtype')
        expect([error.where, error.got]).toEqual([where, got])
        expect(error.want).toContain('Float32Array')
      }
    }
    expect(await snapshotOf(session)).toEqual(await snapshotOf(await open()))
  })

  it('of a layer that is not there names the range', async () => {
    const session = await open()
    for (const layer of [2, -1, 0.5, Number.NaN, Number.POSITIVE_INFINITY, '0', null, undefined] as number[])
      for (const call of [
        () => session.append(layer, good),
        () => session.prefill(layer, { ...good, queries: prompt }),
        () => session.attend(layer, { queries }),
        () => session.retrieve(layer, { queries }),
        () => engine().attendBatch([{ session, layer, queries }]),
        () => engine().appendBatch([{ session, layer, ...good }]),
      ]) {
        const error = await refusedUnchanged(session, call, 'bad_layer')
        expect(error.want).toBe('a whole number from 0 to 1')
        expect(error.got).toBe(typeof layer === 'string' ? '"0"' : String(layer))
      }
    await refused(() => session.length(2), 'bad_layer')
  })

  it('of a k that is no count is refused', async () => {
    const session = await open()
    for (const k of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, '8'] as number[]) {
      const error = await refusedUnchanged(session, () => session.retrieve(0, { queries, k }), 'bad_k')
      expect(error.where).toBe('session.retrieve(k)')
      expect(error.want).toBe('a whole number of at least 1')
    }
  })

  it('that is nothing at all is refused by every call', async () => {
    const session = await open()
    for (const nothing of [undefined, null, 7, 'x'] as never[]) {
      const calls: [() => unknown, ErrorCode][] = [
        [() => session.append(0, nothing), 'bad_dtype'],
        [() => session.prefill(0, nothing), 'bad_dtype'],
        [() => session.attend(0, nothing), 'bad_dtype'],
        [() => session.retrieve(0, nothing), 'bad_dtype'],
        [() => engine().createSession(nothing), 'bad_config'],
        [() => engine().estimate(nothing), 'bad_config'],
        [() => engine().attendBatch(nothing), 'bad_config'],
        [() => engine().appendBatch(nothing), 'bad_config'],
        [() => engine().attendBatch([nothing]), 'bad_config'],
        [() => engine().appendBatch([nothing]), 'bad_config'],
        [() => engine().restore(nothing), 'bad_dtype'],
      ]
      for (const [call, code] of calls) await refusedUnchanged(session, async () => call(), code)
    }
  })

  it('that is null where options belong counts as none', async () => {
    const session = await open()
    const none = null as unknown as undefined
    await session.append(0, good, none)
    await session.prefill(0, { ...rows(seq, 65, 70), queries: prompt }, none)
    await session.attend(0, { queries }, none)
    await session.retrieve(0, { queries }, none)
    await engine().attendBatch([{ session, layer: 0, queries }], none)
    await engine().appendBatch([{ session, layer: 0, ...rows(seq, 70, 71) }], none)
    const restored = await engine().restore(session.snapshot(none), none)
    expect(restored.length()).toBe(71)
    expect((await engine().createSession(options(), none)).length()).toBe(0)
  })
})
