import { describe, expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import { type Dtype, dtypeBytes, f16ToF32 } from '../../sdk/dtype.ts'
import type { LookupJob } from '../../sdk/kernels/lookup.ts'
import { onEveryBackend } from '../support/backends.ts'
import { DTYPES, gaussians, integer, poisoned, random, rowsOf } from '../support/inputs.ts'
import { oracle, runOne } from '../support/jobs.ts'
import { expectRepeatable, expectSame } from '../support/repeat.ts'

function job(tokens: number, width: number, rows: number, dtype: Dtype): LookupJob<Bytes> {
  const next = random(tokens + width * 31 + rows)
  const ids = Uint32Array.from({ length: tokens }, () => integer(next, 0, rows - 1))
  ids[0] = rows - 1
  if (tokens > 2) ids[1] = 0
  const table = rowsOf(gaussians(next, rows * width), 1, width, dtype).buf
  return { ids: Bytes.of(ids), tokens, table, dtype, rows, width, output: poisoned(tokens * width * 4) }
}

/** Every finite bit pattern of a 16-bit type, 8 a row. */
function everyFinite(dtype: 'f16' | 'bf16'): Uint16Array {
  const top = dtype === 'f16' ? 0x7c00 : 0x7f80
  return Uint16Array.from({ length: 65536 }, (_, i) => i).filter((bits) => (bits & top) !== top)
}

onEveryBackend('lookup', (backend) => {
  async function check(given: LookupJob<Bytes>): Promise<LookupJob<Bytes>> {
    const [got, want] = [await runOne(backend(), 'lookup', given), oracle('lookup', given)]
    expectSame(got.output.u32, want.output.u32, 'bits of the output')
    return got
  }

  it.each(DTYPES)('gives rows of a table of %s to the bit', async (dtype) => {
    for (const tokens of [1, 2, 7, 8, 9, 33, 130])
      for (const [width, rows] of [
        [8, 1],
        [72, 19],
        [384, 50],
      ])
        await check(job(tokens, width, rows, dtype))
  })

  it.each(['f16', 'bf16'] as const)('widens every finite %s', async (dtype) => {
    const bits = everyFinite(dtype)
    const rows = bits.length / 8
    const ids = Bytes.of(Uint32Array.from({ length: rows }, (_, i) => rows - 1 - i))
    const output = poisoned(bits.length * 4)
    await check({ ids, tokens: rows, table: Bytes.of(bits), dtype, rows, width: 8, output })
  })

  it.each(DTYPES)('gives zeros for ids beyond a table of %s', async (dtype) => {
    const given = job(5, 24, 10, dtype)
    const ids = Bytes.of(Uint32Array.of(3, 10, 9, 0xffffffff, 0x80000000))
    const { output } = await check({ ...given, ids })
    const zero = (t: number) => output.u32.subarray(t * 24, (t + 1) * 24).every((bits) => bits === 0)
    expect([0, 1, 2, 3, 4].map(zero)).toEqual([false, true, false, true, true])
  })

  it('repeats to the bit, in a batch and alone', () =>
    expectRepeatable(backend(), 'lookup', job(9, 40, 30, 'f16'), job(33, 8, 100, 'f16')))
})

describe('lookup, the reference', () => {
  it('widens the row of each id', () => {
    const bits = Uint16Array.from({ length: 24 }, (_, i) => 0x3c00 + 37 * i)
    const output = new Bytes(2 * 8 * dtypeBytes('f32'))
    const ids = Bytes.of(Uint32Array.of(2, 0))
    const { output: got } = oracle('lookup', {
      ...{ ids, tokens: 2, table: Bytes.of(bits), dtype: 'f16', rows: 3, width: 8, output },
    })
    expect([...got.f32]).toEqual([...bits.slice(16), ...bits.slice(0, 8)].map(f16ToF32))
  })
})
