import { z } from 'zod'
import type { Dtype } from './dtype.ts'
import { describe, type ErrorCode, ParisError } from './errors.ts'
import { makeShape, type Shape } from './shape.ts'

/** How a session retrieves. Every field may be left out. */
export interface PolicyOptions {
  /** `paper`: the published scores (`collision`). `fast`: `signs` with β = .02. Fields given beside it win. */
  readonly preset?: 'paper' | 'fast'
  /**
   * How keys are scored at first, by default `signs`: it finds with 5% candidates what `collision` finds with 10%, and
   * needs no counts.
   */
  readonly coarse?: 'signs' | 'collision'
  /** K: retrieved keys a KV head, 1 to 2²⁰, by default 100: they hold most of a sharp head's attention mass. */
  readonly k?: number
  /** First tokens always attended to, 0 to 2²⁰, by default 64; models park attention there. */
  readonly sink?: number
  /** Latest full-precision tokens before the buffer, 0 to 2²⁰, by default 256; attention is densest there. */
  readonly local?: number
  /**
   * Tokens that gather in the buffer before they move on together, 1 to 2²⁰, by default 256, so that encoding runs in
   * blocks.
   */
  readonly update?: number
  /**
   * A group's query heads choose by their mean (`mean`, published and the default) or each for itself, a key counting
   * its best (`max`).
   */
  readonly group?: 'mean' | 'max'
  /** β: candidates as a share of the zone, above 0 to 1. Unset: by zone length, see `candidateRatio`. */
  readonly beta?: number
  /** ρ: share of the zone that `collision` lets vote, above 0 to 1. Unset: by zone length. */
  readonly rho?: number
  /**
   * Tokens below which attention is dense, 0 to 2²⁸, by default 2000: there reading everything is cheaper than choosing.
   */
  readonly denseBelow?: number
  /**
   * Weight `signs` scores by the key's length, one more byte a key. `auto`, the default, is off unless a model runner
   * says that its model has no k-norm.
   */
  readonly normWeighted?: boolean | 'auto'
  /**
   * Every n-th retrieval is compared with the exact top K, n from 0 to 2³⁰; 0, the default, is never. Costs a scan of the
   * zone's keys.
   */
  readonly auditEvery?: number
  /**
   * Where the rows of the retrieval zone live: on the device (`never`), or in host memory beside the summary, the latest
   * rows and a cache of hot ones (`always`). `auto`, the default, moves them to the host where everything together would
   * not fit `vramBudget` or what the backend has left as the session opens, as of the 4 GiB of WebAssembly; an estimate
   * counts on all that it can give. The outputs of steps are the same.
   */
  readonly offload?: 'auto' | 'never' | 'always'
  /**
   * Bytes that the session may take on the device, from 1, beside the working memory of a prefill, a `check`, a range or
   * a retrieval of more than k. Unset: as many as the backend gives.
   */
  readonly vramBudget?: number
  /** Bytes of host memory that the session's rows may take when it is full, from 1. Unset: as many as the host gives. */
  readonly hostBudget?: number
  /**
   * Rows a layer and KV head in the device's cache of hot rows, k to 2²⁰, where rows live on the host. Unset: 4·k, at
   * least 1024. More rows are fetched less often; below 2·k most of them are sent anew at every step.
   */
  readonly hotRows?: number
}

/** What `createSession` and `estimate` take: the model's shape, the capacity, and how to store and retrieve. */
export interface SessionOptions {
  /** L: decoder layers, 1 to 1024. */
  readonly layers: number
  /** Hq: query heads, 1 to 4096, a multiple of `kvHeads`. */
  readonly queryHeads: number
  /** H: key/value heads, 1 to 1024. */
  readonly kvHeads: number
  /** d: head dimension, a multiple of 8 from 8 to 256. */
  readonly headDim: number
  /**
   * Tokens a layer can hold, 1 to 2²⁸. Memory for all of them is taken when the session opens (or at its first append).
   */
  readonly capacity: number
  /** Seed of the rotation's signs, u32, by default 42. Any value serves; sessions that exchange codes need the same one. */
  readonly seed?: number
  /** How K and V are stored. Unset: as first given. */
  readonly store?: Dtype
  /** Multiplies q·k, above 0 to 10⁶. Unset: 1/√d. */
  readonly scale?: number
  readonly policy?: PolicyOptions
}

/** A schema for each documented field and for no other, that takes nothing which its type does not say. */
type Fields<T> = { readonly [F in keyof Required<T>]: z.ZodType<unknown, T[F]> }

const whole = (least: number, most: number) => z.number().int().min(least).max(most)

const policySchema = z.strictObject({
  preset: z.enum(['paper', 'fast']).optional(),
  coarse: z.enum(['signs', 'collision']).default('signs'),
  k: whole(1, 1 << 20).default(100),
  sink: whole(0, 1 << 20).default(64),
  local: whole(0, 1 << 20).default(256),
  update: whole(1, 1 << 20).default(256),
  group: z.enum(['mean', 'max']).default('mean'),
  beta: z.number().gt(0).max(1).optional(),
  rho: z.number().gt(0).max(1).optional(),
  denseBelow: whole(0, 1 << 28).default(2000),
  normWeighted: z.union([z.boolean(), z.literal('auto')]).default('auto'),
  auditEvery: whole(0, 1 << 30).default(0),
  offload: z.enum(['auto', 'never', 'always']).default('auto'),
  vramBudget: whole(1, Number.MAX_SAFE_INTEGER).optional(),
  hostBudget: whole(1, Number.MAX_SAFE_INTEGER).optional(),
  hotRows: whole(1, 1 << 20).optional(),
} satisfies Fields<PolicyOptions>)

const PRESETS = { paper: { coarse: 'collision' }, fast: { coarse: 'signs', beta: 0.02 } } as const

/** The schema behind `parseConfig`, for what describes it to others. */
export const configSchema = z.strictObject({
  layers: whole(1, 1024),
  queryHeads: whole(1, 4096),
  kvHeads: whole(1, 1024),
  headDim: z.number(),
  capacity: whole(1, 1 << 28),
  seed: whole(0, 0xffffffff).default(42),
  store: z.enum(['f32', 'f16', 'bf16']).optional(),
  scale: z.number().gt(0).max(1e6).optional(),
  policy: policySchema.prefault({}),
} satisfies Fields<SessionOptions>)

/** The policy with every default filled in; `beta` and `rho` stay unset when they follow the zone's length. */
export type Policy = Required<Omit<PolicyOptions, 'preset' | 'normWeighted' | Optional>> &
  Pick<PolicyOptions, Optional> & { readonly normWeighted: boolean }

type Optional = 'beta' | 'rho' | 'vramBudget' | 'hostBudget' | 'hotRows'

/** Where a session's rows live: what a policy says of the machine, not of the sequence. Snapshots do not carry it. */
export type Placement = Pick<PolicyOptions, 'offload' | 'vramBudget' | 'hostBudget' | 'hotRows'>

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
export function parseConfig(options: SessionOptions, where = 'engine.createSession'): SessionConfig {
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
  if (policy.hotRows !== undefined && policy.hotRows < policy.k) {
    throw new ParisError('bad_config', {
      where: `${where}: policy.hotRows`,
      got: String(policy.hotRows),
      want: `at least k, ${policy.k}`,
      fix: 'The cache of hot rows must hold all that one step retrieves.',
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

/** The same, without what only concerns the machine that it came from. */
export function portableOptions(config: SessionConfig): SessionOptions {
  const { offload: _, vramBudget: _v, hostBudget: _h, hotRows: _r, ...policy } = config.policy
  return { ...configOptions(config), policy }
}

/** The return type holds the schema to taking all that the documented options can say. */
function withPreset(options: SessionOptions): z.input<typeof configSchema> {
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
