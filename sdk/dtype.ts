/** Element types of keys, values and their store. 16-bit ones travel as `Uint16Array` bit patterns. */
export type Dtype = 'f32' | 'f16' | 'bf16'

/** Bytes of one element. */
export function dtypeBytes(dtype: Dtype): 2 | 4 {
  return dtype === 'f32' ? 4 : 2
}

const scratch = new DataView(new ArrayBuffer(4))

/** The bit pattern of an f32. */
export function f32Bits(x: number): number {
  scratch.setFloat32(0, x)
  return scratch.getUint32(0)
}

/** The f32 of a bit pattern. */
export function bitsF32(bits: number): number {
  scratch.setUint32(0, bits)
  return scratch.getFloat32(0)
}

/** f32 to bf16 bits, round to nearest even; NaN stays a quiet NaN with its sign, overflow becomes Inf. */
export function f32ToBf16(x: number): number {
  const bits = f32Bits(x)
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff
}

/** bf16 bits to f32, exact. */
export function bf16ToF32(h: number): number {
  return bitsF32((h << 16) >>> 0)
}

/** f32 to f16 bits, round to nearest even; subnormals kept, overflow becomes Inf, NaN stays a quiet NaN. */
export function f32ToF16(x: number): number {
  const bits = f32Bits(x)
  const sign = (bits >>> 16) & 0x8000
  const abs = bits & 0x7fffffff
  if (abs > 0x7f800000) return sign | 0x7e00 | ((abs >>> 13) & 0x1ff)
  if (abs >= 0x477ff000) return sign | 0x7c00
  if (abs < 0x33000000) return sign
  const exponent = abs >>> 23
  const mantissa = (abs & 0x7fffff) | 0x800000
  const shift = exponent < 113 ? 126 - exponent : 13
  const kept = mantissa >>> shift
  const rest = mantissa & ((1 << shift) - 1)
  const half = 1 << (shift - 1)
  const rounded = kept + (rest > half || (rest === half && (kept & 1) === 1) ? 1 : 0)
  // A carry out of the mantissa raises the exponent by itself; the hidden bit of a normal number is removed.
  return sign | (exponent < 113 ? rounded : rounded + ((exponent - 113) << 10))
}

/** f16 bits to f32, exact. */
export function f16ToF32(h: number): number {
  const exponent = (h >>> 10) & 31
  const mantissa = h & 0x3ff
  const magnitude =
    exponent === 0
      ? mantissa * 2 ** -24
      : exponent === 31
        ? mantissa === 0
          ? Number.POSITIVE_INFINITY
          : Number.NaN
        : (1 + mantissa / 1024) * 2 ** (exponent - 15)
  return h & 0x8000 ? -magnitude : magnitude
}

let f16Table: Float32Array | undefined

/** All 65,536 f16 patterns as f32; built at first use. */
function f16Values(): Float32Array {
  if (f16Table) return f16Table
  const table = new Float32Array(65536)
  for (let h = 0; h < 65536; h++) table[h] = f16ToF32(h)
  f16Table = table
  return table
}

/**
 * Widens `count` elements to f32, exactly.
 * @param src `Float32Array` for f32, `Uint16Array` bit patterns otherwise
 */
export function toF32(
  dtype: Dtype,
  src: ArrayLike<number>,
  from: number,
  count: number,
  dst: Float32Array,
  at = 0,
): void {
  if (dtype === 'f32') for (let i = 0; i < count; i++) dst[at + i] = src[from + i]
  else if (dtype === 'f16') {
    const table = f16Values()
    for (let i = 0; i < count; i++) dst[at + i] = table[src[from + i]]
  } else {
    const bits = new Uint32Array(dst.buffer, dst.byteOffset, dst.length)
    for (let i = 0; i < count; i++) bits[at + i] = src[from + i] << 16
  }
}

/** One f32 as the bits (16-bit types) or the value (f32) that the store keeps; round to nearest even. */
export function fromF32(dtype: Dtype, x: number): number {
  return dtype === 'f32' ? x : dtype === 'f16' ? f32ToF16(x) : f32ToBf16(x)
}
