import type { Policy } from '../config.ts'

/** Published defaults by zone length: [zone shorter than, β, ρ]. */
const PUBLISHED: ReadonlyArray<readonly [number, number, number]> = [
  [5_000, 0.5, 0.5],
  [10_000, 0.25, 0.3],
  [30_000, 0.2, 0.25],
  [Number.POSITIVE_INFINITY, 0.1, 0.2],
]

/** β for a zone of `count` keys: the policy's, or the published one (half of it for `signs`, which finds as much). */
export function candidateRatio(count: number, policy: Pick<Policy, 'beta' | 'coarse'>): number {
  if (policy.beta !== undefined) return policy.beta
  const [, beta] = published(count)
  return policy.coarse === 'signs' ? beta / 2 : beta
}

/** ρ for a zone of `count` keys. */
export function collisionRatio(count: number, policy: Pick<Policy, 'rho'>): number {
  return policy.rho ?? published(count)[2]
}

/** C = max(K, ⌈β·N⌉), at most N. */
export function candidateCount(count: number, k: number, policy: Pick<Policy, 'beta' | 'coarse'>): number {
  return Math.min(count, Math.max(k, Math.ceil(candidateRatio(count, policy) * count)))
}

/** The most candidates any zone of up to `count` keys can ask for: β falls at the published lengths. */
export function mostCandidates(count: number, k: number, policy: Pick<Policy, 'beta' | 'coarse'>): number {
  const lengths = [count, ...PUBLISHED.map(([below]) => Math.min(count, below - 1))]
  return Math.max(...lengths.map((n) => candidateCount(n, k, policy)))
}

function published(count: number) {
  return PUBLISHED.find(([below]) => count < below) ?? PUBLISHED[PUBLISHED.length - 1]
}
