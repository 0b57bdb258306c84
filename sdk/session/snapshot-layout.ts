import { partBytes, type SummaryPart } from '../cache/summary.ts'
import { zonesOf } from '../cache/zones.ts'
import type { SessionConfig } from '../config.ts'
import { type Dtype, dtypeBytes } from '../dtype.ts'
import type { TensorDtype } from '../safetensors.ts'
import { M } from '../shape.ts'

/** One tensor of a snapshot, and where its bytes live. */
export interface SnapshotTensor {
  readonly name: string
  readonly dtype: TensorDtype
  readonly shape: readonly number[]
  readonly layer: number
  readonly part: 'keys' | 'values' | SummaryPart
  /** Rows a head and bytes a row; heads are contiguous. */
  readonly rows: number
  readonly rowBytes: number
}

const STORE: Record<Dtype, TensorDtype> = { f32: 'F32', f16: 'F16', bf16: 'BF16' }

/**
 * The tensors of a snapshot, in file order: for each layer keys and values [H, n, d], then the codes of its retrieval
 * zone of z keys: signs [H, z, D/8], magnitudes [H, z, 3, D/8], weights [H, z, B], scales [H, z] and, with
 * `normWeighted`, norms [H, z] and norm_exp [H]. Centroid counts follow from the signs and are not stored.
 */
export function snapshotTensors(config: SessionConfig, lengths: readonly number[], store: Dtype): SnapshotTensor[] {
  const { kvHeads: H, headDim: d, paddedDim: D } = config.shape
  return lengths.flatMap((n, layer) => {
    const z = zonesOf(n, config.policy).retrieval
    const tensor = (
      part: SnapshotTensor['part'],
      dtype: TensorDtype,
      rows: number,
      rowBytes: number,
      shape: number[],
    ): SnapshotTensor => ({ name: `layers.${layer}.${part}`, dtype, shape, layer, part, rows, rowBytes })
    const row = d * dtypeBytes(store)
    const codes = (part: SummaryPart, dtype: TensorDtype, ...inner: number[]) =>
      tensor(part, dtype, z, partBytes(part, D), [H, z, ...inner])
    return [
      tensor('keys', STORE[store], n, row, [H, n, d]),
      tensor('values', STORE[store], n, row, [H, n, d]),
      codes('signs', 'U8', D / 8),
      codes('magnitudes', 'U8', 3, D / 8),
      codes('weights', 'U8', D / M),
      codes('scales', 'BF16'),
      ...(config.policy.normWeighted ? [codes('norms', 'U8'), tensor('normExp', 'I32', 1, 4, [H])] : []),
    ]
  })
}

/** Rows moved at once: a multiple of 16 near a mebibyte. */
export function rowsAtOnce(tensor: SnapshotTensor): number {
  return Math.max(16, Math.floor(2 ** 20 / tensor.rowBytes / 16) * 16)
}

/** 64 zeros stand where the digest goes while it is computed. */
export const NO_DIGEST = '0'.repeat(64)

/** Where the 64 digits of the digest start in a header's bytes, or −1. */
export function digestAt(header: Uint8Array): number {
  const text = new TextDecoder('latin1').decode(header)
  const key = '"sha256":"'
  const at = text.indexOf(key)
  return at < 0 ? -1 : at + key.length
}
