import type { Backend } from '../backend.ts'
import { NO_EXPONENT, type Summary, strideOf, summaryParts } from '../codec/codec.ts'
import type { SessionConfig } from '../config.ts'
import { M } from '../shape.ts'
import { zonesOf } from './zones.ts'

/** Names of a summary's buffers, in allocation order. */
export type SummaryPart = keyof ReturnType<typeof summaryParts>

/** Keys a retrieval zone can reach at full capacity, rounded up to a block of 16. */
export function summaryCapacity(config: SessionConfig): number {
  return Math.ceil(zonesOf(config.capacity, config.policy).retrieval / 16) * 16
}

/** Bytes of one layer's summary, part by part; only the parts that the policy needs. */
export function summaryPlan(config: SessionConfig, layout: Backend['layout']): [SummaryPart, number][] {
  const { shape, policy } = config
  const bytes = summaryParts(shape.kvHeads, summaryCapacity(config), shape.paddedDim, layout)
  const parts = Object.entries(bytes) as [SummaryPart, number][]
  return parts.filter(([part]) => {
    if (part === 'counts') return policy.coarse === 'collision'
    if (part === 'norms' || part === 'normExp') return policy.normWeighted
    return true
  })
}

/** Bytes a key of a part in canonical layout; 0 for the parts that are not by key. */
export function partBytes(part: SummaryPart, D: number): number {
  return { signs: D / 8, magnitudes: (3 * D) / 8, weights: D / M, scales: 2, norms: 1, normExp: 0, counts: 0 }[part]
}

/** Empties the parts that accumulate; codes themselves are overwritten by the next encode. */
export function resetSummary(backend: Backend, summary: Summary, heads: number): void {
  if (summary.counts) backend.clear(summary.counts)
  if (summary.normExp) {
    const empty = new Int32Array(heads).fill(NO_EXPONENT)
    backend.write(summary.normExp, 0, new Uint8Array(empty.buffer))
  }
}

/**
 * Keys [from, from + count) of head h of one part, in canonical layout: row by row without padding.
 * @param from a multiple of 16
 */
export async function readPart(
  backend: Backend,
  s: Summary,
  part: SummaryPart,
  h: number,
  from: number,
  count: number,
): Promise<Uint8Array> {
  const buf = s[part]
  if (!buf) throw new Error(`the summary has no ${part}`)
  const geometry = partGeometry(s, part)
  const keys = Math.ceil(count / 16) * 16
  const bytes = await backend.read(buf, (h * s.cap + from) * geometry.stride, keys * geometry.stride)
  return reorder(bytes, count, geometry, 'out')
}

/** The inverse of `readPart`: writes canonical bytes; keys up to the next multiple of 16 become 0. */
export function writePart(
  backend: Backend,
  s: Summary,
  part: SummaryPart,
  h: number,
  from: number,
  canonical: Uint8Array,
): void {
  const buf = s[part]
  if (!buf) throw new Error(`the summary has no ${part}`)
  const geometry = partGeometry(s, part)
  const count = canonical.length / geometry.bytes
  backend.write(buf, (h * s.cap + from) * geometry.stride, reorder(canonical, count, geometry, 'in'))
}

interface Geometry {
  /** Bytes a key in canonical layout, and in the buffer. */
  readonly bytes: number
  readonly stride: number
  /** A key's bytes come in `rows` runs, each padded alone. */
  readonly rows: number
  readonly block: number
}

function partGeometry(s: Summary, part: SummaryPart): Geometry {
  const bytes = partBytes(part, s.D)
  const padded = part === 'signs' || part === 'magnitudes' || part === 'weights'
  const rows = part === 'magnitudes' ? 3 : 1
  return {
    bytes,
    rows,
    stride: padded ? rows * strideOf(bytes / rows, s.layout) : bytes,
    block: part === 'signs' ? s.layout.block : 1,
  }
}

function reorder(src: Uint8Array, count: number, g: Geometry, direction: 'in' | 'out'): Uint8Array {
  if (g.block === 1 && g.bytes === g.stride && direction === 'out') return src.subarray(0, count * g.bytes)
  const padded = Math.ceil(count / 16) * 16
  const dst = new Uint8Array(direction === 'out' ? count * g.bytes : padded * g.stride)
  const run = g.bytes / g.rows
  const paddedRun = g.stride / g.rows
  for (let n = 0; n < count; n++)
    for (let i = 0; i < g.bytes; i++) {
      const row = Math.floor(i / run)
      const b = row * paddedRun + (i - row * run)
      const inner = Math.floor(n / g.block) * g.block * g.stride + b * g.block + (n % g.block)
      const outer = n * g.bytes + i
      if (direction === 'out') dst[outer] = src[inner]
      else dst[inner] = src[outer]
    }
  return dst
}
