import type { AllocRequest, Buf } from '../backend.ts'
import { ParisError } from '../errors.ts'

/** What `assembly/arena.ts` exports. Pointers come back signed: `>>> 0`. */
export interface Arena {
  /** Zeroed bytes, or 0. */
  allocate(bytes: number): number
  release(at: number): void
}

/** A block of the linear memory. */
export class WasmBuf implements Buf {
  constructor(
    /** Address, u32. */
    readonly at: number,
    readonly bytes: number,
  ) {}
}

/** The address of a buffer; 0, which no buffer has, for none. */
export function address(buf: Buf | null | undefined): number {
  return buf ? (buf as WasmBuf).at : 0
}

/** The linear memory as a host sees it. Growth detaches every view, so none is kept beyond its buffer. */
export class LinearMemory {
  private readonly live = new Set<Buf>()
  private view: Uint8Array

  constructor(
    readonly memory: WebAssembly.Memory,
    private readonly arena: Arena,
    private readonly maxBytes: number,
  ) {
    this.view = new Uint8Array(memory.buffer)
  }

  /** All bytes, as the memory is now. */
  get u8(): Uint8Array {
    if (this.view.buffer !== this.memory.buffer) this.view = new Uint8Array(this.memory.buffer)
    return this.view
  }

  alloc(requests: readonly AllocRequest[]): WasmBuf[] {
    const given: WasmBuf[] = []
    for (const { label, bytes } of requests) {
      const size = Math.ceil(bytes / 4) * 4
      const at = size > this.maxBytes ? 0 : this.arena.allocate(size) >>> 0
      if (at === 0) {
        const have = this.allocated()
        this.free(given)
        const asked = requests.reduce((sum, request) => sum + request.bytes, 0)
        const before = have - given.reduce((sum, buf) => sum + buf.bytes, 0)
        throw outOfMemory(`wasm.alloc(${label})`, asked, before, this.maxBytes)
      }
      const buf = new WasmBuf(at, size)
      this.live.add(buf)
      given.push(buf)
    }
    return given
  }

  /** The address of a range of a buffer: a stray one would reach another buffer. @throws RangeError */
  range(buf: Buf, offset: number, bytes: number): number {
    if (offset >= 0 && offset + bytes <= buf.bytes && this.live.has(buf)) return address(buf) + offset
    const state = this.live.has(buf) ? `a buffer of ${buf.bytes}` : 'a buffer that has been freed'
    throw new RangeError(`bytes ${offset} to ${offset + bytes} of ${state}`)
  }

  /** Freeing twice is harmless: the second time the buffer is no longer live. */
  free(buffers: readonly Buf[]): void {
    for (const buf of buffers) if (this.live.delete(buf)) this.arena.release(address(buf))
  }

  allocated(): number {
    let sum = 0
    for (const buf of this.live) sum += buf.bytes
    return sum
  }

  dispose(): void {
    this.free([...this.live])
  }
}

/** The error of an allocation that the cap refuses, or below it the host. */
export function outOfMemory(where: string, asked: number, have: number, cap: number): ParisError {
  const below = asked + have > cap ? '' : ', as far as the host grants them, in one piece'
  return new ParisError('out_of_memory', {
    where,
    got: `${asked} bytes asked beside ${have} in use`,
    want: `at most ${cap} bytes of linear memory${below}`,
    fix: 'Lower capacity, layers or heads, take a 16-bit store, or dispose sessions; a GPU or the reference has no such cap.',
  })
}
