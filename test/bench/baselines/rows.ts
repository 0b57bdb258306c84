import { bf16ToF32 } from '../../../sdk/dtype.ts'
import type { Session } from '../../../sdk/index.ts'

/** Keys and values by layer and KV head, [n, d] each. */
export type Rows = readonly (readonly { readonly keys: Float32Array; readonly values: Float32Array }[])[]

/** All that a session with bf16 rows holds. */
export async function rowsOf(session: Session): Promise<Rows> {
  const { layers, kvHeads } = session.config.shape
  const rows: { keys: Float32Array; values: Float32Array }[][] = []
  for (let l = 0; l < layers; l++) {
    rows.push([])
    for (let h = 0; h < kvHeads; h++)
      rows[l].push({ keys: await readRows(session, 'keys', l, h), values: await readRows(session, 'values', l, h) })
  }
  return rows
}

/** Rows [n, d] of one layer and KV head, stored as bf16. */
export async function readRows({ state }: Session, which: 'keys' | 'values', l: number, h: number) {
  const { length, [which]: rows } = state.cache!.layer(l)
  const row = rows.d * 2
  const bytes = (await state.backend.read(rows.buf, h * rows.cap * row, length * row)).slice()
  return Float32Array.from(new Uint16Array(bytes.buffer), bf16ToF32)
}
