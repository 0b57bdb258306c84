import { type LayerCache, segmentsOf } from '../cache/layer.ts'
import { readPart, type SummaryPart } from '../cache/summary.ts'
import { type Summary, summaryParts } from '../codec/codec.ts'
import { refusedValues } from './refused.ts'
import type { SessionState } from './state.ts'

/** What `check` found. */
export interface CheckReport {
  readonly ok: boolean
  /** Keys compared. */
  readonly checked: number
  /** Values that came in GPUBuffers, were not finite in the store's dtype and are stored as 0. */
  readonly refused: number
  /** One line a mismatch, and one for such values. */
  readonly problems: readonly string[]
}

/** Keys compared at each of three places of a zone: its start, its middle, its end. */
const SAMPLE = 16

/** Compares codes with a fresh encoding of the stored rows. Inside the session's queue. */
export async function checkState(state: SessionState): Promise<CheckReport> {
  const { backend, config, cache } = state
  const problems: string[] = []
  let checked = 0
  if (!cache) return { ok: true, checked, refused: 0, problems }
  const { kvHeads: heads, layers, paddedDim: D } = config.shape
  const bytes = summaryParts(heads, SAMPLE, D, backend.layout)
  const parts = ['signs', 'magnitudes', 'weights', 'scales'] as const
  const buffers = await backend.alloc(parts.map((part) => ({ label: `check ${part}`, bytes: bytes[part] })))
  const [signs, magnitudes, weights, scales] = buffers
  const fresh: Summary = { cap: SAMPLE, D, layout: backend.layout, signs, magnitudes, weights, scales }
  try {
    for (let l = 0; l < layers; l++)
      for (const at of samplePlaces(cache.zones(l).retrieval)) {
        const layer = cache.layer(l)
        const count = Math.min(SAMPLE, cache.zones(l).retrieval - at)
        const from = cache.zones(l).sink + at
        for await (const { keys, at } of segmentsOf(layer, from, from + count))
          backend.encode([{ keys, heads, from: at, count, rotation: cache.rotation, summary: fresh, at: 0 }])
        for (let h = 0; h < heads; h++) {
          const bad = await mismatch(state, layer, fresh, h, at, count)
          if (bad) problems.push(`layer ${l}, head ${h}, keys ${at}..${at + count - 1}: ${bad}`)
          checked += count
        }
      }
  } finally {
    backend.free(buffers)
  }
  const refused = await refusedValues(state)
  if (refused > 0) problems.push(`${refused} values from GPUBuffers were not finite and are stored as 0`)
  return { ok: problems.length === 0, checked, refused, problems }
}

/** Multiples of 16 at the start, the middle and the end of a zone. */
function samplePlaces(zone: number): number[] {
  if (zone === 0) return []
  const block = (n: number) => Math.floor(n / SAMPLE) * SAMPLE
  return [...new Set([0, block(zone / 2), block(zone - 1)])]
}

/** Signs must agree to the bit; weight scales, which another backend may have rounded, to a unit in the last place. */
async function mismatch(
  state: SessionState,
  layer: LayerCache,
  fresh: Summary,
  h: number,
  at: number,
  count: number,
): Promise<string | undefined> {
  const { backend } = state
  const pair = async (part: SummaryPart) =>
    Promise.all([readPart(backend, layer.summary, part, h, at, count), readPart(backend, fresh, part, h, 0, count)])
  const [have, want] = await pair('signs')
  if (have.some((byte, i) => byte !== want[i])) return 'the sign plane is not that of the stored keys'
  const [haveScales, wantScales] = (await pair('scales')).map((b) => new Uint16Array(b.slice().buffer))
  if (haveScales.some((bits, i) => Math.abs(bits - wantScales[i]) > 1)) return 'weight scales are not those of the keys'
  return undefined
}
