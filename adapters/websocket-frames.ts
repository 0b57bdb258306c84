/** Frames of RFC 6455 as a server reads and writes them. */

export const OPCODE = { continuation: 0, text: 1, binary: 2, close: 8, ping: 9, pong: 10 } as const

/** One whole frame, unmasked. */
export interface Frame {
  readonly fin: boolean
  readonly opcode: number
  readonly payload: Buffer
}

/** A peer that broke the protocol: the connection ends with this close code. */
export class FrameError extends Error {
  constructor(
    /** 1002 protocol error, 1007 text that is not UTF-8, 1009 too big. */
    readonly closeCode: 1002 | 1007 | 1009,
    message: string,
  ) {
    super(message)
  }
}

/** Cuts a byte stream into frames; holds at most one frame and what came with it. */
export class FrameReader {
  private held: Buffer[] = []
  private bytes = 0

  /** @param maxPayload bytes of one frame */
  constructor(private readonly maxPayload: number) {}

  /**
   * Takes what has arrived and gives the frames that are whole with it.
   * @throws FrameError at a frame that a client may not send
   */
  *push(chunk: Buffer): Generator<Frame> {
    this.held.push(chunk)
    this.bytes += chunk.length
    for (let frame = this.next(); frame; frame = this.next()) yield frame
  }

  private next(): Frame | undefined {
    if (this.bytes < 2) return undefined
    const [first, second] = this.peek(2)
    const [fin, opcode, short] = [(first & 0x80) !== 0, first & 0x0f, second & 0x7f]
    if ((first & 0x70) !== 0) throw new FrameError(1002, 'reserved bits are set')
    if ((second & 0x80) === 0) throw new FrameError(1002, 'a client must mask its frames')
    if (opcode > OPCODE.pong || (opcode > OPCODE.binary && opcode < OPCODE.close))
      throw new FrameError(1002, `opcode ${opcode}`)
    if (opcode >= OPCODE.close && (!fin || short > 125)) throw new FrameError(1002, 'a control frame of many parts')
    const lengthBytes = short === 126 ? 2 : short === 127 ? 8 : 0
    const start = 2 + lengthBytes + 4
    if (this.bytes < start) return undefined
    const head = this.peek(start)
    const length = lengthBytes === 0 ? short : lengthBytes === 2 ? head.readUInt16BE(2) : wide(head.readBigUInt64BE(2))
    if (length > this.maxPayload) throw new FrameError(1009, `${length} bytes, at most ${this.maxPayload}`)
    if (this.bytes < start + length) return undefined
    const whole = this.take(start + length)
    const payload = whole.subarray(start)
    unmask(payload, whole.subarray(start - 4, start))
    return { fin, opcode, payload }
  }

  /** The first bytes, without taking them. */
  private peek(count: number): Buffer {
    if (this.held[0].length < count) this.held = [Buffer.concat(this.held)]
    return this.held[0].subarray(0, count)
  }

  private take(count: number): Buffer {
    const all = this.held.length === 1 ? this.held[0] : Buffer.concat(this.held)
    this.held = all.length > count ? [all.subarray(count)] : []
    this.bytes -= count
    return all.subarray(0, count)
  }
}

function wide(length: bigint): number {
  return length > BigInt(Number.MAX_SAFE_INTEGER) ? Number.POSITIVE_INFINITY : Number(length)
}

function unmask(payload: Buffer, mask: Buffer): void {
  for (let i = 0; i < payload.length; i++) payload[i] ^= mask[i & 3]
}

/** The header of an unmasked whole frame with `length` bytes of payload behind it. */
export function frameHeader(opcode: number, length: number): Buffer {
  if (length < 126) return Buffer.from([0x80 | opcode, length])
  if (length < 65_536) return Buffer.from([0x80 | opcode, 126, length >> 8, length & 255])
  const header = Buffer.alloc(10)
  header[0] = 0x80 | opcode
  header[1] = 127
  header.writeBigUInt64BE(BigInt(length), 2)
  return header
}
