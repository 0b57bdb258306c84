import type { Backend, Buf } from '../backend.ts'

/** Named working buffers of one session; they only grow. */
export class Scratch {
  private readonly buffers = new Map<string, Buf>()

  constructor(private readonly backend: Backend) {}

  /**
   * Makes sure that each named buffer has at least that many bytes; contents are undefined afterwards.
   * @throws ParisError `out_of_memory`; what was there stays
   */
  async reserve(sizes: Readonly<Record<string, number>>): Promise<void> {
    const short = Object.entries(sizes).filter(([name, bytes]) => (this.buffers.get(name)?.bytes ?? -1) < bytes)
    if (short.length === 0) return
    const fresh = await this.backend.alloc(
      short.map(([label, bytes]) => ({ label, bytes: Math.max(4, bytes), together: label })),
    )
    short.forEach(([name], i) => {
      const old = this.buffers.get(name)
      if (old) this.backend.free([old])
      this.buffers.set(name, fresh[i])
    })
  }

  get(name: string): Buf {
    const buf = this.buffers.get(name)
    if (!buf) throw new Error(`scratch ${name} was never reserved`)
    return buf
  }

  bytes(): number {
    let sum = 0
    for (const buf of this.buffers.values()) sum += buf.bytes
    return sum
  }

  dispose(): void {
    this.backend.free([...this.buffers.values()])
    this.buffers.clear()
  }
}
