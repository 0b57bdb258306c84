import type { PolicyOptions } from '../../sdk/config.ts'
import { summaryBytes } from '../../sdk/index.ts'
import { exactTop } from './baselines/exact-top.ts'
import type { Finder } from './baselines/finder.ts'
import { magicPig } from './baselines/lsh-sampling.ts'
import { quest } from './baselines/pages.ts'
import { productQuantizer } from './baselines/product-quantizer.ts'
import { windowOnly } from './baselines/window.ts'

/** Zones of every method: each token moves on as it comes. */
export const ZONES = { sink: 4, local: 64 } as const

/** One way to attend: a policy of the package, or another method. */
export interface Selector {
  readonly name: string
  /** Bytes a key that a search reads or keeps, head dimension 128. */
  readonly bytes: number
  readonly policy?: PolicyOptions
  readonly finder?: Finder
}

const D = 128

function paris(coarse: 'signs' | 'collision', percent: number): Selector {
  const policy = { ...ZONES, coarse, beta: percent / 100, update: 1, denseBelow: 0 }
  return { name: `ParisKV ${coarse} ${percent}%`, bytes: summaryBytes(D), policy }
}

const other = (finder: Finder): Selector => ({ name: finder.name, bytes: finder.bytesPerKey(D), finder })

/** Every key, by the model's own full attention. */
export const EXACT: Selector = { name: 'exact attention', bytes: 2 * D }

export const BEST = other(exactTop)

/** All at equal rows. */
export const SELECTORS: readonly Selector[] = [
  BEST,
  ...[2, 5, 10].map((percent) => paris('signs', percent)),
  ...[2, 5, 10].map((percent) => paris('collision', percent)),
  other(productQuantizer(2, 64)),
  other(productQuantizer(16, 64)),
  other(magicPig),
  other(quest),
  other(windowOnly),
]

/** Those of a quick run. */
export const QUICK: readonly Selector[] = [
  BEST,
  paris('signs', 2),
  paris('collision', 5),
  other(productQuantizer(2, 64)),
  other(quest),
  other(windowOnly),
]
