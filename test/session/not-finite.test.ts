import { expect, it } from 'vitest'
import { type Dtype, f32ToBf16, f32ToF16 } from '../../sdk/dtype.ts'
import { Engine } from '../../sdk/engine.ts'
import type { TensorInput } from '../../sdk/input.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { DTYPES } from '../support/inputs.ts'
import { feed, options, queriesAt, refusedUnchanged, rows, sequence, tokensOf } from '../support/sessions.ts'

/** A tensor [heads, tokens, d] of a dtype with one bad element, given by its bits. */
function spoiled(x: Float32Array, dtype: Dtype, at: number, value: number): TensorInput {
  if (dtype === 'f32') {
    const data = x.slice()
    data[at] = value
    return data
  }
  const encode = dtype === 'f16' ? f32ToF16 : f32ToBf16
  const data = Uint16Array.from(x, encode)
  data[at] = encode(value)
  return { dtype, data }
}

const VALUES = [
  ['NaN', Number.NaN],
  ['Inf', Number.POSITIVE_INFINITY],
  ['Inf', Number.NEGATIVE_INFINITY],
] as const

onEveryBackend('what is not finite', (backend) => {
  const seq = sequence(161, 100)
  const chunk = rows(seq, 60, 65)
  const prompt = tokensOf(seq.queries, 100, 16, 60, 65)

  async function refuses(session: Session, call: () => Promise<unknown>, where: string, place: string) {
    const error = await refusedUnchanged(session, call, 'not_finite')
    expect(error.where).toBe(where)
    expect(error.got).toBe(place)
    expect(error.want).toBe('finite numbers')
    expect(error.message).toContain(place)
    expect(error.message).toContain(where)
  }

  it.each(DTYPES)('is refused with its place in %s keys, values and queries', async (dtype) => {
    const session = await new Engine(backend()).createSession(options())
    await feed(session, seq, 0, 60)
    for (const [word, value] of VALUES) {
      const place = `${word} at head 1, token 3, coordinate 7`
      const at = (1 * 5 + 3) * 16 + 7
      const keys = spoiled(chunk.keys, dtype, at, value)
      const values = spoiled(chunk.values, dtype, at, value)
      await refuses(session, () => session.append(0, { ...chunk, keys }), 'session.append(keys)', place)
      await refuses(session, () => session.append(0, { ...chunk, values }), 'session.append(values)', place)
      const queries = spoiled(prompt, dtype, at, value)
      await refuses(session, () => session.prefill(0, { ...chunk, queries }), 'session.prefill(queries)', place)
      await refuses(
        session,
        () => session.prefill(0, { ...chunk, keys, queries: prompt }),
        'session.prefill(keys)',
        place,
      )
      const one = spoiled(queriesAt(seq, 3), dtype, 2 * 16 + 15, value)
      const there = `${word} at head 2, token 0, coordinate 15`
      await refuses(session, () => session.attend(0, { queries: one }), 'session.attend(queries)', there)
      await refuses(session, () => session.retrieve(0, { queries: one }), 'session.retrieve(queries)', there)
    }
    expect(session.stats().calls).toEqual({ append: 1, prefill: 0, attend: 0, retrieve: 0 })
  })

  it('is named at its first place, the very first and the very last too', async () => {
    const session = await new Engine(backend()).createSession(options())
    const first = chunk.keys.slice()
    first[0] = Number.NaN
    first[100] = Number.POSITIVE_INFINITY
    const where = 'session.append(keys)'
    await refuses(
      session,
      () => session.append(0, { ...chunk, keys: first }),
      where,
      'NaN at head 0, token 0, coordinate 0',
    )
    const last = chunk.keys.slice()
    last[last.length - 1] = Number.NEGATIVE_INFINITY
    await refuses(
      session,
      () => session.append(0, { ...chunk, keys: last }),
      where,
      'Inf at head 1, token 4, coordinate 15',
    )
  })

  it('is seen in every NaN pattern, and the largest finite numbers are not', async () => {
    const session = await new Engine(backend()).createSession(options({ store: 'f32' }))
    const bits = new Uint32Array(chunk.keys.slice().buffer)
    for (const pattern of [0x7f800001, 0xff800001, 0x7fc00000, 0xffffffff]) {
      bits[9] = pattern
      const keys = new Float32Array(bits.buffer)
      const place = 'NaN at head 0, token 0, coordinate 9'
      await refuses(session, () => session.append(0, { ...chunk, keys }), 'session.append(keys)', place)
    }
    for (const pattern of [0x7f7fffff, 0xff7fffff, 1, 0x80000000]) {
      bits[9] = pattern
      await session.append(0, { ...chunk, keys: new Float32Array(bits.buffer) })
    }
    expect(session.length()).toBe(20)
  })
})
