import { z } from 'zod'
import type { Dtype } from './dtype.ts'
import { type ErrorCode, ParisError } from './errors.ts'
import { makeShape, type Shape } from './shape.ts'

const whole = (least: number, most: number) => z.number().int().min(least).max(most)

/** How a session retrieves. Each default stands beside its field, with its reason. */
const policySchema = z.strictObject({
  /** `paper`: the published scores (`collision`). `fast`: `signs` with β = .02. Fields given beside it win. */
  preset: z.enum(['paper', 'fast']).optional(),
  /** `signs` finds with 5% candidates what `collision` finds with 10%, and needs no counts. */
  coarse: z.enum(['signs', 'collision']).default('signs'),
  /** K: retrieved keys a KV head. 100 hold most of a sharp head's attention mass. */
  k: whole(1, 1 << 20).default(100),
  /** First tokens always attended to; models park attention there. */
  sink: whole(0, 1 << 20).default(64),
  /** Latest full-precision tokens before the buffer; attention is densest there. */
  local: whole(0, 1 << 20).default(256),
  /** Tokens that gather in the buffer before they move on together, so that encoding runs in blocks. */
  update: whole(1, 1 << 20).default(256),
  /** A group's query heads choose by their mean (published) or each for itself, a key counting its best (`max`). */
  group: z.enum(['mean', 'max']).default('mean'),
  /** β: candidates as a share of the zone. Unset: by zone length, see `candidateRatio`. */
  beta: z.number().gt(0).max(1).optional(),
  /** ρ: share of the zone that `collision` lets vote. Unset: by zone length. */
  rho: z.number().gt(0).max(1).optional(),
  /** Below this length attention is dense: reading everything is cheaper than choosing. */
  denseBelow: whole(0, 1 << 28).default(2000),
  /** Weight `signs` scores by the key's length, one more byte a key. `auto` is off unless a model runner says that its model has no k-norm. */
  normWeighted: z.union([z.boolean(), z.literal('auto')]).default('auto'),
  /** Every n-th retrieval is compared with the exact top K; 0 is never. Costs a scan of the zone's keys. */
  auditEvery: whole(0, 1 << 30).default(0),
})

const PRESETS = { paper: { coarse: 'collision' }, fast: { coarse: 'signs', beta: 0.02 } } as const

const configSchema = z.strictObject({
  /** L. */
  layers: whole(1, 1024),
  /** Hq, a multiple of `kvHeads`. */
  queryHeads: whole(1, 4096),
  /** H. */
  kvHeads: whole(1, 1024),
  /** d, a multiple of 8 from 8 to 256. */
  headDim: z.number(),
  /** Tokens a layer can hold. Memory for all of them is taken when the session opens (or at its first append). */
  capacity: whole(1, 1 << 28),
  /** Seed of the rotation's signs, u32. Any value serves; sessions that exchange codes need the same one. */
  seed: whole(0, 0xffffffff).default(42),
  /** How K and V are stored. Unset: as first given. */
  store: z.enum(['f32', 'f16', 'bf16']).optional(),
  /** Multiplies q·k. Unset: 1/√d. */
  scale: z.number().gt(0).max(1e6).optional(),
  policy: policySchema.prefault({}),
})

/** What `createSession` and `estimate` take. */
export type SessionOptions = z.input<typeof configSchema>
/** The policy as given. */
export type PolicyOptions = z.input<typeof policySchema>
/** The policy with every default filled in; `beta` and `rho` stay unset when they follow the zone's length. */
export type Policy = Omit<z.output<typeof policySchema>, 'preset' | 'normWeighted'> & { readonly normWeighted: boolean }

/** A checked configuration. */
export interface SessionConfig {
  readonly shape: Shape
  readonly capacity: number
  readonly seed: number
  readonly store: Dtype | undefined
  readonly scale: number
  readonly policy: Policy
}

/**
 * Checks a configuration and fills in its defaults.
 * @throws ParisError `bad_head_dim`, `bad_k` or `bad_config` naming the field
 */
export function parseConfig(options: SessionOptions, where = 'createSession'): SessionConfig {
  const parsed = configSchema.safeParse(withPreset(options))
  if (!parsed.success) throw configError(where, parsed.error.issues[0], options)
  const { layers, queryHeads, kvHeads, headDim, capacity, seed, store, scale, policy } = parsed.data
  if (headDim % 8 !== 0 || headDim < 8 || headDim > 256) {
    throw new ParisError('bad_head_dim', {
      where: `${where}: headDim`,
      got: String(headDim),
      want: 'a multiple of 8 from 8 to 256',
      fix: 'Pad heads with zeros to the next multiple of 8; inner products do not change.',
    })
  }
  if (queryHeads % kvHeads !== 0) {
    throw new ParisError('bad_config', {
      where: `${where}: queryHeads`,
      got: `${queryHeads} query heads on ${kvHeads} KV heads`,
      want: 'a whole number of query heads a KV head',
      fix: 'Take num_attention_heads and num_key_value_heads from the model.',
    })
  }
  const { preset: _, normWeighted, ...rest } = policy
  return {
    shape: makeShape(layers, queryHeads, kvHeads, headDim),
    capacity,
    seed,
    store,
    scale: scale ?? 1 / Math.sqrt(headDim),
    policy: { ...rest, normWeighted: normWeighted === true && rest.coarse === 'signs' },
  }
}

/** The options that `parseConfig` turns into the same configuration, e.g. for a snapshot. */
export function configOptions(config: SessionConfig): SessionOptions {
  const { shape, policy, capacity, seed, store, scale } = config
  const { layers, queryHeads, kvHeads, headDim } = shape
  return { layers, queryHeads, kvHeads, headDim, capacity, seed, store, scale, policy }
}

function withPreset(options: SessionOptions): unknown {
  const preset = options?.policy?.preset
  if (!preset || !(preset in PRESETS)) return options
  const given = Object.entries(options.policy ?? {}).filter(([, value]) => value !== undefined)
  return { ...options, policy: { ...PRESETS[preset], ...Object.fromEntries(given) } }
}

function configError(where: string, issue: z.core.$ZodIssue, options: unknown): ParisError {
  const path = issue.path.map(String)
  const code: ErrorCode = path[0] === 'headDim' ? 'bad_head_dim' : path.at(-1) === 'k' ? 'bad_k' : 'bad_config'
  const got = path.reduce<unknown>((value, key) => (value as Record<string, unknown> | undefined)?.[key], options)
  if (issue.code === 'unrecognized_keys') {
    return new ParisError('bad_config', {
      where: path.length ? `${where}: ${path.join('.')}` : where,
      got: `the unknown field ${issue.keys.map((key) => JSON.stringify(key)).join(', ')}`,
      want: Object.keys((path.length ? policySchema : configSchema).shape).join(', '),
      fix: 'Mind the spelling; see SessionOptions for every field, its range and its default.',
    })
  }
  return new ParisError(code, {
    where: path.length ? `${where}: ${path.join('.')}` : where,
    got: describe(got),
    want: issue.message,
    fix: 'See SessionOptions for every field, its range and its default.',
  })
}

/** A short, safe rendering of any value for an error message. */
export function describe(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.slice(0, 80))
  if (value !== null && typeof value === 'object') return Object.prototype.toString.call(value).slice(8, -1)
  return String(value)
}
