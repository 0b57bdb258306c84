import type { Cache } from '../cache/cache.ts'
import { largestValue } from '../cache/room.ts'
import { writePart } from '../cache/summary.ts'
import type { Pace } from '../calls.ts'
import { ParisError } from '../errors.ts'
import { storedTensor } from '../input.ts'
import { rowsAtOnce, type SnapshotTensor } from './snapshot-layout.ts'

/** Writes a snapshot's tensors into an empty cache, in file order. */
export class CacheFill {
  /** Keys per centroid, [H, B, 256] by layer: they follow from the sign planes. */
  private readonly tallies = new Map<number, Uint32Array<ArrayBuffer>>()

  constructor(private readonly cache: Cache) {}

  /** @param take the next bytes of the file, in memory of their own */
  async run(
    tensors: readonly SnapshotTensor[],
    pace: Pace,
    take: (count: number) => Promise<Uint8Array<ArrayBuffer>>,
  ): Promise<void> {
    let done = 0
    for (const tensor of tensors)
      for (let h = 0; h < this.cache.config.shape.kvHeads; h++)
        for (let from = 0; from < tensor.rows; from += rowsAtOnce(tensor)) {
          const count = Math.min(tensor.rows - from, rowsAtOnce(tensor))
          const bytes = await take(count * tensor.rowBytes)
          await this.writeRows(tensor, h, from, count, bytes)
          done += bytes.length
          await pace.step(done)
        }
  }

  /** Writes what was gathered and lets the tokens be seen. */
  async finish(lengths: readonly number[]): Promise<void> {
    const { cache } = this
    for (const [l, tally] of this.tallies) {
      const { counts } = cache.layer(l).summary
      if (counts) cache.backend.write(counts, 0, new Uint8Array(tally.buffer))
    }
    for (const [l, length] of lengths.entries()) await cache.settle(l, length)
  }

  private async writeRows(
    t: SnapshotTensor,
    h: number,
    from: number,
    count: number,
    bytes: Uint8Array<ArrayBuffer>,
  ): Promise<void> {
    const { backend, config } = this.cache
    const layer = this.cache.layer(t.layer)
    if (t.part === 'keys' || t.part === 'values') {
      const max = this.largest(t, count, bytes)
      if (t.part === 'keys') layer.maxKey = Math.max(layer.maxKey, max)
      else if (max > largestValue(config.capacity)) throw this.corrupt(t, `|v| up to ${max}`)
      await this.cache.writeRows(t.layer, t.part, h, from, bytes)
    } else if (t.part === 'normExp') {
      if (layer.summary.normExp) backend.write(layer.summary.normExp, h * 4, bytes)
    } else {
      writePart(backend, layer.summary, t.part, h, from, bytes)
      if (t.part === 'signs' && layer.summary.counts) this.tally(t, h, bytes)
    }
  }

  /** The largest |x| of some rows. @throws ParisError `snapshot_corrupt` where one is not finite: no session held it */
  private largest(t: SnapshotTensor, tokens: number, bytes: Uint8Array<ArrayBuffer>): number {
    const { store, config } = this.cache
    const where = 'engine.restore'
    try {
      return storedTensor(bytes.buffer, store, { where, name: t.name, heads: 1, d: config.shape.headDim, tokens }).max
    } catch (cause) {
      throw this.corrupt(t, cause instanceof ParisError ? cause.got : 'other rows', cause)
    }
  }

  private corrupt(t: SnapshotTensor, got: string, cause?: unknown): ParisError {
    const fix = 'Copy or download the file again.'
    const want = 'finite rows that a session could have taken'
    return new ParisError('snapshot_corrupt', {
      where: 'engine.restore',
      got: `${t.name} with ${got}`,
      want,
      fix,
      cause,
    })
  }

  /** A centroid id is a byte of the sign plane. */
  private tally(t: SnapshotTensor, h: number, signs: Uint8Array): void {
    const B = t.rowBytes
    let tally = this.tallies.get(t.layer)
    if (!tally) {
      tally = new Uint32Array(this.cache.config.shape.kvHeads * B * 256)
      this.tallies.set(t.layer, tally)
    }
    for (let i = 0; i < signs.length; i++) tally[(h * B + (i % B)) * 256 + signs[i]]++
  }
}
