import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import type { Rotation } from '../../sdk/codec/codec.ts'
import type { Context } from '../../sdk/llm/context.ts'
import type { ContextOptions, Model } from '../../sdk/llm/model.ts'
import { type Layer, makeLayers, RECENT, SINK } from './gpu-data.ts'

/** Keys and values [H, tokens, d] bf16 on the device, to fill caches from. */
export interface Sources {
  readonly tokens: number
  readonly chunks: readonly Layer[]
  readonly free: () => void
}

/** @param tokens of a chunk, a multiple of 16 above sink and recent tokens @param chunks as many as the longest cache has */
export async function makeSources(
  gpu: WebgpuBackend,
  rotation: Rotation,
  tokens: number,
  chunks: number,
): Promise<Sources> {
  const all: Layer[] = []
  for (let i = 0; i < chunks; i++)
    all.push(...(await makeLayers(gpu, rotation, [{ count: tokens - SINK - RECENT, seed: 7000 + i }])))
  return { tokens, chunks: all, free: () => gpu.free(all.flatMap((layer) => layer.all)) }
}

/** The chunk that layer `l` of a cache has at place `c`: none twice in a layer, neighbouring layers in another order. */
export function chunkOf({ chunks }: Sources, shift: number, l: number, c: number): Layer {
  return chunks[(shift + 5 * l + c) % chunks.length]
}

/** Tokens beyond the filled ones that a context has room for. */
export const ROOM = 512

/**
 * A context that holds `length` tokens it never saw: random ids, keys and values of the sources in every layer.
 * @param length a multiple of a chunk's tokens
 */
export async function openFilled(
  model: Model,
  gpu: WebgpuBackend,
  sources: Sources,
  { length, shift, ...options }: Omit<ContextOptions, 'capacity'> & { length: number; shift: number },
): Promise<Context> {
  const opened = await model.createContext({ ...options, capacity: length + ROOM })
  const { session } = opened
  const { tokens } = sources
  for (let c = 0; c * tokens < length; c++) {
    const encoder = gpu.device.createCommandEncoder()
    const releases = Array.from({ length: model.config.layers }, (_, l) => {
      const { keys, values } = chunkOf(sources, shift, l, c)
      const rows = { keys: gpu.range(keys.buf), values: gpu.range(values.buf), tokens, dtype: 'bf16' as const }
      return session.encodeAppend(encoder, l, rows)
    })
    gpu.device.queue.submit([encoder.finish()])
    for (const release of releases) release()
  }
  return seated(opened, length)
}

/** A context over the session of another, which has been filled beside the model; it takes that one's place. */
export async function seated(opened: Context, length: number): Promise<Context> {
  const { host, session } = opened
  const tokens = Array.from({ length }, (_, i) => (Math.imul(i + 1, 2_654_435) >>> 0) % host.vocabulary)
  host.closed(opened)
  return host.adopt(session, tokens)
}
