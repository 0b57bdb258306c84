import type { Buf, ReadPart } from '../backend.ts'
import { Bytes } from '../bytes.ts'
import type { Cache } from '../cache/cache.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import { ParisError } from '../errors.ts'
import type { EncodeJob } from '../kernels/encode.ts'
import { type StoreJob, store } from '../kernels/store.ts'
import type { SessionState } from './state.ts'

/** One token [H, 1, d] that is on the device first, of a layer whose rows are in pages: in its place there, not counted yet. */
export class Arrival {
  private rows: { readonly keys: Uint8Array; readonly values: Uint8Array } | undefined
  private readonly length: number
  private kept = false
  private crossed = false
  /** Whether counts or norms have this token's part that the length has not yet. */
  private ahead = false

  constructor(
    private readonly state: SessionState,
    private readonly index: number,
    private readonly cache: Cache,
    private readonly token: { readonly keys: Buf; readonly values: Buf; readonly dtype: Dtype },
  ) {
    this.length = cache.layer(index).length
  }

  /** Jobs that store the token and encode what it lets cross into the zone, and what `take` reads. To be run at once. */
  jobs(): { store: StoreJob[]; encode: EncodeJob[]; reads: ReadPart[] } {
    const { state, cache, index, token } = this
    const { kvHeads: heads, headDim } = state.config.shape
    const layer = cache.layer(index)
    const at = layer.offload!.rowOf(this.length)
    const common = { dtype: token.dtype, heads, count: 1, at, refused: state.scratch.get('arriving') }
    const crossing = cache.crossing(index, 1)
    const { counts, norms } = layer.summary
    state.arriving.set(index, this)
    this.crossed = crossing !== undefined
    this.ahead = crossing !== undefined && (counts ?? norms) !== undefined
    if (this.ahead) layer.stale = true
    const bytes = heads * headDim * dtypeBytes(token.dtype)
    return {
      store: [
        { tokens: token.keys, rows: layer.keys, ...common },
        { tokens: token.values, rows: layer.values, ...common },
      ],
      encode: crossing ? [crossing] : [],
      reads: [token.keys, token.values].map((buf) => ({ buf, offset: 0, bytes })),
    }
  }

  /** Whether no other token was recorded for its place since. */
  get latest(): boolean {
    return this.state.arriving.get(this.index) === this
  }

  /** Takes the token's bytes as they were read back. @throws ParisError `not_finite` */
  take(keys: Uint8Array, values: Uint8Array, where: string): void {
    const [k, v] = [this.stored(keys), this.stored(values)]
    const refused = k.refused + v.refused
    if (refused > 0)
      throw new ParisError('not_finite', {
        where: `${where}(append)`,
        got: `${refused} values that are NaN, Inf or beyond the store`,
        want: 'finite numbers',
        fix: 'Nothing was appended: find out what made them, and append again.',
      })
    this.rows = { keys: k.bytes, values: v.bytes }
  }

  /** A token [H, d] as the device stored it. */
  private stored(given: Uint8Array): { bytes: Uint8Array; refused: number } {
    const { kvHeads: heads, headDim: d } = this.state.config.shape
    const dtype = this.cache.store
    const rows = { buf: new Bytes(heads * d * dtypeBytes(dtype)), dtype, cap: 1, d }
    const refused = new Bytes(4)
    store({ tokens: Bytes.of(given), dtype: this.token.dtype, heads, count: 1, rows, at: 0, refused })
    return { bytes: rows.buf.u8, refused: refused.u32[0] }
  }

  /** Takes the rows into the pages; from here on the token counts. */
  async keep(): Promise<void> {
    const layer = this.cache.layer(this.index)
    if (!this.rows) return
    await layer.offload?.keep(this.length, this.rows.keys, this.rows.values)
    layer.length = this.length + 1
    this.kept = true
    this.state.arriving.delete(this.index)
    // What was made anew since the recording was made of the tokens before this one.
    if (this.ahead) layer.stale = !layer.stale
    this.state.calls.append++
  }

  /** After a failure: the layer has the length that it had, and the rows of others. */
  async undo(): Promise<void> {
    const { cache, index, state } = this
    const layer = cache.layer(index)
    if (this.kept) {
      this.kept = false
      await cache.truncate(index, this.length)
      state.calls.append--
    } else if (state.cache === cache && layer.length > this.length) {
      // Where its commands ran late, this token lies over another that counts.
      layer.stale ||= this.crossed
      await layer.offload?.restore(layer.length)
    }
  }
}
