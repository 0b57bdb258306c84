import { SIGNED_CENTERS } from './arena'

/*
 * Dot products of a key's codes with one query, by pairs of coordinates. For each pair a table of 256 f32 holds
 * ±level·y_a ± level·y_b for every pattern of two nibbles (three index bits and the sign); a subspace is four lookups.
 * The patterns of up to 16 subspaces come out of the four bit planes together, one byte a subspace:
 *
 *   planes     p0 p1 p2 s, each | h g f e d c b a |      coordinates a…h of a subspace, a in bit 0
 *   pair a,e   | s_e p2_e p1_e p0_e  s_a p2_a p1_a p0_a |   then c,g  b,f  d,h
 */

/** [B, 4, 256] f32 for the butterflies y [D], after `prepareLevels`; zeros behind an odd B, whose last step reads them. */
export function fillTables(y: usize, D: i32, tables: usize): void {
  for (const end = y + ((<usize>D) << 2); y < end; y += 32, tables += 4096) {
    fillTable(load<f32>(y), load<f32>(y, 16), tables)
    fillTable(load<f32>(y, 8), load<f32>(y, 24), tables + 1024)
    fillTable(load<f32>(y, 4), load<f32>(y, 20), tables + 2048)
    fillTable(load<f32>(y, 12), load<f32>(y, 28), tables + 3072)
  }
  if (D === 8) memory.fill(tables, 0, 4096)
}

function fillTable(low: f32, high: f32, table: usize): void {
  const y = f32x4.splat(low)
  const v0 = f32x4.mul(y, v128.load(SIGNED_CENTERS))
  const v1 = f32x4.mul(y, v128.load(SIGNED_CENTERS, 16))
  const v2 = f32x4.mul(y, v128.load(SIGNED_CENTERS, 32))
  const v3 = f32x4.mul(y, v128.load(SIGNED_CENTERS, 48))
  for (let i: usize = 0; i < 64; i += 4, table += 64) {
    const other = f32x4.splat(high * load<f32>(SIGNED_CENTERS + i))
    v128.store(table, f32x4.add(v0, other))
    v128.store(table, f32x4.add(v1, other), 16)
    v128.store(table, f32x4.add(v2, other), 32)
    v128.store(table, f32x4.add(v3, other), 48)
  }
}

/** Patterns of 16 subspaces: [4 pairs, 16] bytes at `to`. */
export function unpack(signs: usize, planes: usize, B: usize, to: usize): void {
  const p0 = v128.load(planes)
  const p1 = v128.load(planes + B)
  const p2 = v128.load(planes + 2 * B)
  const s = v128.load(signs)
  const one = i8x16.splat(0x55)
  const two = i8x16.splat(0x33)
  const a = v128.or(v128.and(p0, one), i16x8.shl(v128.and(p1, one), 1))
  const b = v128.or(v128.and(i16x8.shr_u(p0, 1), one), v128.andnot(p1, one))
  const c = v128.or(v128.and(p2, one), i16x8.shl(v128.and(s, one), 1))
  const d = v128.or(v128.and(i16x8.shr_u(p2, 1), one), v128.andnot(s, one))
  v128.store(to, v128.or(v128.and(a, two), i16x8.shl(v128.and(c, two), 2)))
  v128.store(to, v128.or(v128.and(i16x8.shr_u(a, 2), two), v128.andnot(c, two)), 16)
  v128.store(to, v128.or(v128.and(b, two), i16x8.shl(v128.and(d, two), 2)), 32)
  v128.store(to, v128.or(v128.and(i16x8.shr_u(b, 2), two), v128.andnot(d, two)), 48)
}

/** 16 u8 weights as f32. */
export function widenWeights(weights: usize, to: usize): void {
  const low = v128.load8x8_u(weights)
  const high = v128.load8x8_u(weights, 8)
  v128.store(to, f32x4.convert_i32x4_u(i32x4.extend_low_i16x8_u(low)))
  v128.store(to, f32x4.convert_i32x4_u(i32x4.extend_high_i16x8_u(low)), 16)
  v128.store(to, f32x4.convert_i32x4_u(i32x4.extend_low_i16x8_u(high)), 32)
  v128.store(to, f32x4.convert_i32x4_u(i32x4.extend_high_i16x8_u(high)), 48)
}

/** Σ_b w_b · dot_b over `some` subspaces, from their patterns at `at` and the weights 64 bytes on; two chains. */
export function lookups(tables: usize, some: usize, at: usize): f32 {
  let even: f32 = 0
  let odd: f32 = 0
  let w = at + 64
  for (const end = at + some; at < end; at += 2, w += 8, tables += 8192) {
    const e0 = load<f32>(tables + ((<usize>load<u8>(at)) << 2))
    const e1 = load<f32>(tables + ((<usize>load<u8>(at, 16)) << 2), 1024)
    const e2 = load<f32>(tables + ((<usize>load<u8>(at, 32)) << 2), 2048)
    const e3 = load<f32>(tables + ((<usize>load<u8>(at, 48)) << 2), 3072)
    even += (e0 + e1 + (e2 + e3)) * load<f32>(w)
    const o0 = load<f32>(tables + ((<usize>load<u8>(at, 1)) << 2), 4096)
    const o1 = load<f32>(tables + ((<usize>load<u8>(at, 17)) << 2), 5120)
    const o2 = load<f32>(tables + ((<usize>load<u8>(at, 33)) << 2), 6144)
    const o3 = load<f32>(tables + ((<usize>load<u8>(at, 49)) << 2), 7168)
    odd += (o0 + o1 + (o2 + o3)) * load<f32>(w, 4)
  }
  return even + odd
}
