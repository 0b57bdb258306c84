import type { Buf } from '../../sdk/backend.ts'
import type { WasmBackend } from '../../sdk/backends/wasm.ts'
import { fromF32 } from '../../sdk/dtype.ts'
import { makeBed } from './wasm-bed.ts'
import type { TiledKeys } from './wasm-data.ts'
import { takeTurns } from './wasm-turns.ts'

const POSITIONS = 420
const TOKENS = 1024
const APPENDED = 4096

/** Append, attention over 420 positions and a prompt of 1,024 tokens, each beside what the module's own arithmetic allows. */
export async function measureOthers(backend: WasmBackend, source: TiledKeys, rounds: number) {
  const { d, group } = source
  const bed = await makeBed(backend, source, APPENDED)
  const sizes = [TOKENS * d * 2, TOKENS * d * 4, TOKENS * 4, group * d * 4, group * (d + 2) * 4, 400]
  const buffers = await backend.alloc(sizes.map((bytes, i) => ({ label: `part ${i}`, bytes })))
  const [stored, output, lse, queries, partials, ids] = buffers
  const tile = source.keys(0)
  const write = (buf: Buf, data: ArrayBufferView) =>
    backend.write(buf, 0, new Uint8Array(data.buffer, 0, data.byteLength))
  write(
    stored,
    Uint16Array.from(tile.subarray(0, TOKENS * d), (x) => fromF32('bf16', x)),
  )
  write(queries, source.queries(0))
  write(
    ids,
    Uint32Array.from({ length: 100 }, (_, i) => 6 * i),
  )
  const rows = { buf: stored, dtype: 'bf16', cap: TOKENS, d } as const
  const head = { keys: rows, values: rows, heads: 1, scale: 1 / Math.sqrt(d) }
  const attend = {
    queries,
    ...head,
    group,
    before: [0, 64],
    after: [768, 1024],
    ids,
    k: 100,
    base: 64,
    parts: 1,
  } as const
  const times = takeTurns(rounds, {
    encode: () => bed.encode(0, APPENDED),
    one: () => bed.encode(17, 1),
    scan: () => bed.scan(),
    attend: () => backend.attend([{ ...attend, partials }]),
    dense: () => backend.dense([{ ...head, queries: bed.keys, tokens: TOKENS, first: 0, group: 1, output, lse }]),
  })
  bed.free()
  backend.free(buffers)
  const dots = (APPENDED * d) / times.scan.ms / 1e6
  const macs = 2 * POSITIONS * group * d
  const floor = macs / dots / 1e6
  return {
    d,
    'summary bytes a key': bed.bytesPerKey,
    'append: keys a second': Math.round((APPENDED / times.encode.ms) * 1000),
    'append of one key, ms': times.one.ms.toFixed(4),
    'dot products, GMAC/s': dots.toFixed(2),
    [`attend ${POSITIONS} positions, ${group} query heads, bf16, ms`]: times.attend.ms.toFixed(4),
    'attend against its floor at that rate': `${(times.attend.ms / floor).toFixed(2)} ×`,
    [`prefill ${TOKENS} tokens, one head, bf16, ms`]: times.dense.ms.toFixed(2),
    'prefill GFLOP/s (causal half)': ((2 * TOKENS * TOKENS * d) / times.dense.ms / 1e6).toFixed(1),
  }
}
