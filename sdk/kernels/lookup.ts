import type { Buf, Bytes } from '../bytes.ts'
import { type Dtype, toF32 } from '../dtype.ts'

/** Rows of a model's embedding table, one a token. */
export interface LookupJob<B extends Buf = Buf> {
  /** [T] u32. An id at or above `rows` gives zeros. */
  readonly ids: B
  /** T. */
  readonly tokens: number
  /** [V, n] of `dtype`, finite. */
  readonly table: B
  readonly dtype: Dtype
  /** V. */
  readonly rows: number
  /** n, a multiple of 8. */
  readonly width: number
  /** Out: [T, n] f32, other memory than the table. */
  readonly output: B
}

/** Reference. Widening is exact, subnormals included: equal to the bit on every backend. */
export function lookup(job: LookupJob<Bytes>): void {
  const { ids, tokens, dtype, rows, width } = job
  const output = job.output.f32
  const table = dtype === 'f32' ? job.table.f32 : job.table.u16
  for (let t = 0; t < tokens; t++) {
    const id = ids.u32[t]
    if (id < rows) toF32(dtype, table, id * width, width, output, t * width)
    else output.fill(0, t * width, (t + 1) * width)
  }
}
