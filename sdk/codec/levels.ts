/** A scalar quantizer of |u_j|: `thresholds` [levels − 1] between cells, `centers` [levels] inside them, ascending. */
export interface Levels {
  readonly thresholds: readonly number[]
  readonly centers: readonly number[]
}

/**
 * The exact Lloyd–Max quantizer of |u_j| for u uniform on the unit sphere of R^m: density proportional to
 * (1 − x²)^((m−3)/2) on [0, 1]. Cell masses by Gauss–Legendre quadrature in θ = asin x, where the integrand is
 * cos^(m−2) θ; first moments in closed form. Lloyd's iteration until no center moves by 1e-15.
 * @param m 4, 8 or 16 (any m ≥ 3 works)
 */
export function lloydMax(m: number, levels = 8): Levels {
  let centers = Array.from({ length: levels }, (_, i) => ((i + 0.5) / levels) * Math.min(1, 3 / Math.sqrt(m)))
  for (let round = 0; round < 20_000; round++) {
    const edges = [0, ...midpoints(centers), 1]
    const next = centers.map((_, i) => firstMoment(m, edges[i], edges[i + 1]) / mass(m, edges[i], edges[i + 1]))
    const moved = Math.max(...next.map((c, i) => Math.abs(c - centers[i])))
    centers = next
    if (moved < 1e-15) break
  }
  return { thresholds: midpoints(centers), centers }
}

function midpoints(centers: readonly number[]): number[] {
  return centers.slice(1).map((c, i) => (centers[i] + c) / 2)
}

/** ∫ x (1 − x²)^((m−3)/2) dx over [a, b]. */
function firstMoment(m: number, a: number, b: number): number {
  const F = (x: number) => -((1 - x * x) ** ((m - 1) / 2)) / (m - 1)
  return F(b) - F(a)
}

/** ∫ (1 − x²)^((m−3)/2) dx over [a, b], as ∫ cos^(m−2) θ dθ by 10-point Gauss–Legendre on 8 panels. */
function mass(m: number, a: number, b: number): number {
  const start = Math.asin(a)
  const half = (Math.asin(b) - start) / 16
  let sum = 0
  for (let panel = 0; panel < 8; panel++) {
    const mid = start + (2 * panel + 1) * half
    for (const [x, w] of GAUSS_10)
      sum += w * (Math.cos(mid + half * x) ** (m - 2) + Math.cos(mid - half * x) ** (m - 2))
  }
  return sum * half
}

/** Positive nodes and weights of the 10-point Gauss–Legendre rule on [−1, 1]. */
const GAUSS_10: ReadonlyArray<readonly [number, number]> = [
  [0.14887433898163122, 0.29552422471475287],
  [0.4333953941292472, 0.26926671930999635],
  [0.6794095682990244, 0.21908636251598204],
  [0.8650633666889845, 0.1494513491505806],
  [0.9739065285171717, 0.06667134430868814],
]

/** `lloydMax(8)`, computed once: the levels of every stored code. A test recomputes them. */
export const LEVELS: Levels = {
  thresholds: [
    0.08527615885122891, 0.17162243454243387, 0.26026251946178686, 0.35279754578797895, 0.45164666731265546,
    0.5611848546890295, 0.6920913647815115,
  ],
  centers: [
    0.04250866710528162, 0.1280436505971762, 0.2152012184876915, 0.30532382043588224, 0.4002712711400757,
    0.5030220634852353, 0.6193476458928237, 0.7648350836701993,
  ],
}
