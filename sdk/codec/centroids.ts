import { M } from '../shape.ts'

/** Centroids of a subspace: the 2^m sign patterns, (±1/√m)^m. Bit j of the id is set where coordinate j is ≥ 0. */
export const CENTROIDS = 256

/** Coordinate j of centroid `id`: ±1/√8. */
export function centroid(id: number, j: number): number {
  return ((id >> j) & 1 ? 1 : -1) / Math.sqrt(M)
}

/**
 * Inner products of a subspace's query with all 16 sign patterns of four coordinates, unscaled:
 * entry i is ((±q0 ± q1) + (±q2 ± q3)) in f32, + where the bit is set. A centroid's score is lo[id & 15] + hi[id >> 4].
 * @param q rotated query [.., D] f32; the four coordinates start at `at`
 * @param table [16] f32, overwritten
 */
export function signTable(q: Float32Array, at: number, table: Float32Array): void {
  const f = Math.fround
  for (let i = 0; i < 16; i++) {
    const s = (j: number) => ((i >> j) & 1 ? q[at + j] : -q[at + j])
    table[i] = f(f(s(0) + s(1)) + f(s(2) + s(3)))
  }
}
