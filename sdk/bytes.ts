/** Memory of a backend; opaque outside it. */
export interface Buf {
  /** Size in bytes, a multiple of 4. */
  readonly bytes: number
}

/** Host memory seen as every element type at once: what the reference kernels work on. Little-endian hosts only. */
export class Bytes implements Buf {
  readonly bytes: number
  readonly u8: Uint8Array
  readonly i8: Int8Array
  readonly u16: Uint16Array
  readonly i16: Int16Array
  readonly u32: Uint32Array
  readonly i32: Int32Array
  readonly f32: Float32Array

  /** @param bytes rounded up to a multiple of 4; zeroed */
  constructor(bytes: number) {
    const buffer = new ArrayBuffer(Math.ceil(bytes / 4) * 4)
    this.bytes = buffer.byteLength
    this.u8 = new Uint8Array(buffer)
    this.i8 = new Int8Array(buffer)
    this.u16 = new Uint16Array(buffer)
    this.i16 = new Int16Array(buffer)
    this.u32 = new Uint32Array(buffer)
    this.i32 = new Int32Array(buffer)
    this.f32 = new Float32Array(buffer)
  }

  /** A copy of any typed array's bytes. */
  static of(array: ArrayBufferView): Bytes {
    const copy = new Bytes(array.byteLength)
    copy.u8.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength))
    return copy
  }
}

/** Bytes read back from a backend as f32, not copied. */
export function f32View(bytes: Uint8Array): Float32Array {
  return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4)
}

/** Bytes read back from a backend as u32, not copied. */
export function u32View(bytes: Uint8Array): Uint32Array {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4)
}
