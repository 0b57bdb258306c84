import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import type { Cache } from '../../sdk/cache/cache.ts'
import { LayerPages, pageShift } from '../../sdk/cache/layer-pages.ts'
import type { OffloadedLayer } from '../../sdk/cache/offload.ts'
import { MemoryPages } from '../../sdk/cache/pages.ts'
import { zonesOf } from '../../sdk/cache/zones.ts'
import type { Context } from '../../sdk/llm/context.ts'
import type { ContextOptions, Model } from '../../sdk/llm/model.ts'
import { DIM, HEADS, type Layer } from './gpu-data.ts'
import { chunkOf, ROOM, type Sources, seated } from './gpu-llm-cache.ts'

/** Bytes of a key, and of a value. */
const ROW = DIM * 2

/** A page as a tier keeps it, in two halves. */
interface Image {
  readonly first: Uint8Array
  readonly second: Uint8Array
}

/** The pages that the chunks of sources fill, read back from the device once for all layers. */
export class Images {
  private constructor(
    private readonly shift: number,
    private readonly images: ReadonlyMap<Layer, readonly Image[]>,
  ) {}

  /**
   * @param length of the contexts to be filled
   * @throws Error where a chunk does not end where a page does
   */
  static async read(gpu: WebgpuBackend, { tokens, chunks }: Sources, length: number): Promise<Images> {
    const shift = pageShift(HEADS, ROW, length + ROOM)
    if (tokens % 2 ** shift > 0) throw new Error(`chunks of ${tokens} tokens are no whole pages of ${2 ** shift}`)
    const pageBytes = (2 * ROW * HEADS) << shift
    const [tier, pages] = [new MemoryPages(pageBytes), new LayerPages(HEADS, ROW, shift)]
    await pages.reserve(tier, tokens)
    const at = new Float64Array(tokens)
    const images = new Map<Layer, Image[]>()
    for (const chunk of chunks) {
      const bytes = HEADS * tokens * ROW
      const read = await gpu.readAll([chunk.keys, chunk.values].map(({ buf }) => ({ buf, offset: 0, bytes })))
      for (let h = 0; h < HEADS; h++) {
        const [keys, values] = read.map((all) => all.subarray(h * tokens * ROW, (h + 1) * tokens * ROW))
        pages.run(tier, h, 0, tokens, at)
        tier.scatter(at, tokens, ROW, keys, values)
      }
      const half = pageBytes / 2
      const copies = Array.from({ length: tokens >> shift }, (_, p) => {
        const image = { first: new Uint8Array(half), second: new Uint8Array(half) }
        tier.gather(Float64Array.of(pages.at(tier, 0, p << shift)), 1, half, image.first, image.second)
        return image
      })
      images.set(chunk, copies)
    }
    return new Images(shift, images)
  }

  /** Bytes of all of them. */
  get bytes(): number {
    const all = [...this.images.values()].flat()
    return all.reduce((sum, { first, second }) => sum + first.length + second.length, 0)
  }

  /**
   * Writes a chunk's pages from a position on.
   * @throws Error where the layer's pages are of another size
   */
  async write(chunk: Layer, to: OffloadedLayer, position: number): Promise<void> {
    const { tier, plan } = to.shared
    if (plan.shift !== this.shift) throw new Error(`pages of ${2 ** plan.shift} tokens, images of ${2 ** this.shift}`)
    // Where a layer's pages lie is its own affair; written row by row, hundreds of gigabytes take minutes.
    const { pages } = to as unknown as { readonly pages: LayerPages }
    for (const [p, { first, second }] of this.images.get(chunk)!.entries()) {
      const at = Float64Array.of(pages.at(tier, 0, position + (p << this.shift)))
      await tier.scatter(at, 1, first.length, first, second)
    }
  }
}

/**
 * What `openFilled` makes, with the rows on the host: pages from their images, summaries encoded from the chunks on the
 * device.
 * @param from the chunks, and their pages
 * @param told called after each layer with the number of those that are filled
 */
export async function openAway(
  model: Model,
  gpu: WebgpuBackend,
  { sources, images }: { readonly sources: Sources; readonly images: Images },
  {
    length,
    shift,
    told,
    ...options
  }: Omit<ContextOptions, 'capacity'> & { length: number; shift: number; told?: (layers: number) => void },
): Promise<Context> {
  const policy = { ...options.policy, offload: 'always' as const }
  const opened = await model.createContext({ ...options, policy, capacity: length + ROOM })
  try {
    const cache = opened.session.state.cache!
    for (let l = 0; l < model.config.layers; l++) {
      const offload = cache.layer(l).offload!
      await offload.makeRoom(0, length)
      for (let at = 0; at < length; at += sources.tokens) {
        const chunk = chunkOf(sources, shift, l, at / sources.tokens)
        encodeChunk(gpu, cache, { l, chunk, at, tokens: sources.tokens, length })
        await images.write(chunk, offload, at)
      }
      gpu.flush()
      await cache.settle(l, length)
      told?.(l + 1)
    }
    return seated(opened, length)
  } catch (error) {
    await opened.dispose()
    throw error
  }
}

/** Encodes what of a chunk at position `at` is in the retrieval zone of a layer of that length. */
function encodeChunk(
  gpu: WebgpuBackend,
  cache: Cache,
  { l, chunk, at, tokens, length }: { l: number; chunk: Layer; at: number; tokens: number; length: number },
): void {
  const { sink, retrieval } = zonesOf(length, cache.config.policy)
  const [first, end] = [Math.max(sink, at), Math.min(sink + retrieval, at + tokens)]
  if (first >= end) return
  const { rotation } = cache
  const { summary } = cache.layer(l)
  const places = { from: first - at, count: end - first, at: first - sink }
  gpu.encode([{ keys: chunk.keys, heads: HEADS, rotation, summary, ...places }])
}
