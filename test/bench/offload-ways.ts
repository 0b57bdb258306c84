import type { PolicyOptions } from '../../sdk/config.ts'
import { ParisError } from '../../sdk/errors.ts'
import type { Attention, Context } from '../../sdk/llm/context.ts'
import type { ContextOptions, Model } from '../../sdk/llm/model.ts'
import type { MemoryUse } from '../../sdk/session/memory.ts'
import { decode, type Pace } from './gpu-llm-decode.ts'
import type { Report } from './gpu-report.ts'
import type { Stamps } from './gpu-stamps.ts'
import { hitsBetween } from './offload-data.ts'
import { firstDifference, type TableRow, tableLine } from './offload-table.ts'

/** ParisKV with its rows on the host and on the device, and full attention. */
export const WAYS = {
  always: { attention: 'paris', policy: { offload: 'always' } },
  never: { attention: 'paris', policy: { offload: 'never' } },
  full: { attention: 'full', policy: { offload: 'never' } },
} as const satisfies Record<string, Attention>
export type Way = keyof typeof WAYS

/** A way under a policy. */
export function attentionOf(way: Way, policy: PolicyOptions): Attention {
  return { attention: WAYS[way].attention, policy: { ...policy, ...WAYS[way].policy } }
}

export const ALL_WAYS = Object.keys(WAYS) as Way[]

const FORCED = [5, 77, 5, 301, 12, 200, 77, 44]

/** What a way made of the same cache and the same tokens. */
export interface Measured {
  readonly row: TableRow
  /** Logits after each forced token. */
  readonly logits: readonly Float32Array[]
  /** The greedy tokens behind them. */
  readonly text: readonly number[]
}

/** What tables say of a measurement beside the clock. */
export interface Setting {
  readonly stamps?: Stamps
  readonly pace: Pace
  /** Tokens before those, whose logits are compared: 8 at most. */
  readonly forced: number
  /** Milliseconds of a step that are not its layers'. */
  readonly head: number
}

/** Forced tokens, then greedy ones, of which those behind the warm ones are timed. */
export async function measureWay(model: Model, context: Context, way: Way, setting: Setting): Promise<Measured> {
  const { stamps, pace, forced, head } = setting
  const logits: Float32Array[] = []
  for (const id of FORCED.slice(0, forced)) logits.push((await context.step(id)).slice())
  const { length } = context
  if (pace.warm > 2) await decode(model, [context], undefined, { warm: pace.warm - 2, steps: 1 })
  const before = (await context.stats()).offload
  const decoded = await decode(model, [context], stamps, { ...pace, warm: 1 })
  const after = (await context.stats()).offload
  const hits = before && after ? hitsBetween(before, after) : '-'
  const row = { ...decoded, way, head, layers: model.config.layers, hits, memory: context.memory() }
  return { row, logits, text: context.tokens.slice(length) }
}

/**
 * Measures one way after the other and prints its line of the table, then how they compare.
 * @param open a filled context, or why there is none
 */
export async function compareWays(
  out: Report,
  model: Model,
  setting: Setting,
  open: (way: Way) => Promise<Context | string>,
): Promise<void> {
  const found: Partial<Record<Way, Measured>> = {}
  for (const way of ALL_WAYS) {
    const context = await open(way)
    if (typeof context === 'string') {
      out.add(`${way.padEnd(10)}${context}`, { way, refused: context })
      continue
    }
    const { length } = context
    try {
      const measured = await measureWay(model, context, way, setting)
      found[way] = measured
      out.add(tableLine(measured.row), { length, ...measured.row })
    } finally {
      await context.dispose()
      globalThis.gc?.()
    }
  }
  const { always, never, full } = found
  if (always && never) compareTwins(out, always, never)
  for (const [name, other] of [['never', never] as const, ['full', full] as const]) {
    if (!always || !other) continue
    const ratio = other.row.wall / always.row.wall
    out.add(`always is ${ratio.toFixed(2)} times as fast as ${name}`, { ratio, against: name })
  }
}

/** Rows on the host must change nothing. */
function compareTwins(out: Report, always: Measured, never: Measured): void {
  const different = firstDifference(always.logits, never.logits)
  const [mine, theirs] = [always.text, never.text].map((ids) => ids.join())
  const text = mine === theirs
  const logits = `logits after ${always.logits.length} tokens ${different ? `differ: ${different}` : 'equal to the bit'}`
  const greedy = `the ${always.text.length} greedy tokens behind them ${text ? 'the same' : 'others'}`
  out.add(`always beside never: ${logits}; ${greedy}`, { same: !different, text, different })
  if (different || !text) process.exitCode = 1
}

/** Bytes that a context would take on the device and on the host, or why it is refused. */
export function costOf(
  model: Model,
  options: ContextOptions,
): { readonly use: MemoryUse; readonly device: number } | string {
  try {
    const use = model.estimate(options)
    return { use, device: use.total - (use.pages ?? 0) }
  } catch (error) {
    if (error instanceof ParisError) return `refused: ${error.message}`
    throw error
  }
}
