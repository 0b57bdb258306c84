import { expect, it } from 'vitest'
import { bf16ToF32, type Dtype, f16ToF32, f32ToBf16, f32ToF16 } from '../../sdk/dtype.ts'
import { Engine } from '../../sdk/engine.ts'
import type { TensorInput } from '../../sdk/input.ts'
import { ATTENTION } from '../support/attention.ts'
import { onEveryBackend } from '../support/backends.ts'
import { exactAttention, upTo } from '../support/exact.ts'
import { DTYPES } from '../support/inputs.ts'
import { expectNear, expectSame } from '../support/repeat.ts'
import { options, queriesAt, sequence, tokensOf } from '../support/sessions.ts'

const encoded: Record<Dtype, (x: Float32Array) => TensorInput> = {
  f32: (data) => ({ dtype: 'f32', data }),
  f16: (x) => ({ dtype: 'f16', data: Uint16Array.from(x, f32ToF16) }),
  bf16: (x) => ({ dtype: 'bf16', data: Uint16Array.from(x, f32ToBf16) }),
}
const rounded: Record<Dtype, (x: Float32Array) => Float32Array> = {
  f32: (x) => x,
  f16: (x) => x.map((v) => f16ToF32(f32ToF16(v))),
  bf16: (x) => x.map((v) => bf16ToF32(f32ToBf16(v))),
}

onEveryBackend('stores', (backend, name) => {
  const n = 150
  const seq = sequence(51, n)
  const pairs = DTYPES.flatMap((store) => DTYPES.map((input) => ({ store, input })))

  it.each(pairs)('keeps $input rows as $store', async ({ store, input }) => {
    const session = await new Engine(backend()).createSession(options({ store }, { denseBelow: 1000 }))
    const half = (data: Float32Array, from: number, to: number) => encoded[input](tokensOf(data, n, 16, from, to))
    await session.append(0, { keys: half(seq.keys, 0, 70), values: half(seq.values, 0, 70) })
    await session.append(0, { keys: half(seq.keys, 70, n), values: half(seq.values, 70, n) })
    expect(session.stats().store).toBe(store)
    const kept = (x: Float32Array) => rounded[store](rounded[input](x))
    const held = { ...seq, keys: kept(seq.keys), values: kept(seq.values) }
    const queries = queriesAt(seq, n - 1)
    const want = exactAttention(held, queries, upTo(n))
    const { output, lse } = await session.attend(0, { queries })
    const near = name === 'reference' ? 1e-6 : ATTENTION[store]
    expectNear(output, want.output, near * 6, 'output')
    expectNear(lse, want.lse, 1e-4, 'lse')
  })

  it.each(DTYPES)('takes the dtype first given where none is named: %s', async (dtype) => {
    const session = await new Engine(backend()).createSession(options({}))
    expect(session.stats().store).toBeUndefined()
    const empty = new Float32Array(0)
    await session.append(0, { keys: encoded.f32(empty), values: encoded.f32(empty) })
    expect(session.stats().store).toBeUndefined()
    await session.append(0, { keys: encoded[dtype](seq.keys), values: encoded.f32(seq.values) })
    expect(session.stats().store).toBe(dtype)
    expect(session.memory().rows).toBe(2 * 2 * 512 * 16 * (dtype === 'f32' ? 4 : 2))
  })

  it('takes 16-bit queries as it takes their f32', async () => {
    const session = await new Engine(backend()).createSession(options({}))
    await session.append(0, { keys: seq.keys, values: seq.values })
    for (const dtype of DTYPES) {
      const queries = queriesAt(seq, 20)
      const a = await session.attend(0, { queries: encoded[dtype](queries) })
      const b = await session.attend(0, { queries: rounded[dtype](queries) })
      expectSame(a.output, b.output, 'output')
    }
  })
})
