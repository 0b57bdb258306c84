/**
 * The seeded ±1 diagonal of the rotation.
 * Generator: SplitMix32 (state += 0x9e3779b9, then the 32-bit MurmurHash3 finalizer); coordinate j takes
 * the top bit of output j, set for −1. 32-bit integer arithmetic only, so every backend and host agrees.
 * @param seed any u32
 * @returns Int8Array [D] of ±1
 */
export function seededSigns(seed: number, D: number): Int8Array {
  const signs = new Int8Array(D)
  let state = seed >>> 0
  for (let j = 0; j < D; j++) {
    state = (state + 0x9e3779b9) >>> 0
    let z = state
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b)
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35)
    z ^= z >>> 16
    signs[j] = z < 0 ? -1 : 1
  }
  return signs
}
