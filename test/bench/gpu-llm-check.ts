import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import { Engine } from '../../sdk/engine.ts'
import type { Context } from '../../sdk/llm/context.ts'
import type { Model } from '../../sdk/llm/model.ts'
import { exactTop, type Step } from './gpu-chain.ts'
import { DIM, HEADS, makeQueries, SINK } from './gpu-data.ts'
import { chunkOf, openFilled, ROOM, type Sources, seated } from './gpu-llm-cache.ts'
import { configOf, copyModel, makeModel } from './gpu-llm-model.ts'

type Way = 'paris' | 'full'
const FORCED = [5, 777]
/** Of the largest logit. */
const ALLOWED = 2e-3

/**
 * Decodes a few tokens of a small model over a cache of two chunks here and on the reference backend.
 * @returns for each way to attend the largest difference of logits, as a share of the largest logit
 * @throws Error where one is too large, or where retrieval changes nothing
 */
export async function checkTwin(engine: Engine, gpu: WebgpuBackend, sources: Sources) {
  const config = configOf(true)
  const length = 2 * sources.tokens
  const { model, weights } = await makeModel(engine, gpu, config)
  const reference = new Engine(createReferenceBackend())
  const twin = await copyModel(reference, gpu, config, weights)
  const found: Record<Way, { logits: Float32Array[]; off: number }> = {
    paris: { logits: [], off: 0 },
    full: { logits: [], off: 0 },
  }
  for (const attention of ['paris', 'full'] as const) {
    const ours = await openFilled(model, gpu, sources, { length, shift: 1, attention })
    const theirs = await openCopied(twin, gpu, sources, length, attention)
    for (const id of FORCED) {
      const [got, want] = [await ours.step(id, { ahead: id !== FORCED.at(-1) }), await theirs.step(id)]
      found[attention].logits.push(got)
      found[attention].off = Math.max(found[attention].off, difference(got, want))
    }
    await ours.dispose()
    if (!(found[attention].off <= ALLOWED))
      throw new Error(`${attention}: logits are off by ${found[attention].off} of the largest`)
  }
  const apart = Math.min(...FORCED.map((_, i) => difference(found.paris.logits[i], found.full.logits[i])))
  if (!(apart > ALLOWED)) throw new Error(`paris and full differ by ${apart} only: nothing was left out`)
  await model.dispose()
  await reference.dispose()
  return { paris: found.paris.off, full: found.full.off, apart }
}

/** What `openFilled` makes, on a backend without a GPU. */
async function openCopied(twin: Model, gpu: WebgpuBackend, sources: Sources, length: number, attention: Way) {
  const opened = await twin.createContext({ capacity: length + ROOM, attention })
  for (let l = 0; l < twin.config.layers; l++)
    for (let c = 0; c * sources.tokens < length; c++) {
      const { keys, values } = chunkOf(sources, 1, l, c)
      const bytes = HEADS * sources.tokens * DIM * 2
      const read = async (buf: typeof keys.buf) =>
        ({ dtype: 'bf16', data: new Uint16Array((await gpu.read(buf, 0, bytes)).slice().buffer) }) as const
      await opened.session.append(l, { keys: await read(keys.buf), values: await read(values.buf) })
    }
  return seated(opened, length)
}

function difference(got: Float32Array, want: Float32Array): number {
  let [most, off] = [0, 0]
  for (const [i, value] of want.entries()) {
    most = Math.max(most, Math.abs(value))
    off = Math.max(off, Number.isFinite(got[i]) ? Math.abs(got[i] - value) : Number.POSITIVE_INFINITY)
  }
  return off / most
}

/** recall@K of one retrieval of one layer, for queries that look for stored keys, by the exact top K of all keys there. */
export async function auditRecall(gpu: WebgpuBackend, sources: Sources, { session }: Context, layer: number) {
  const { cache, scratch } = session.state
  const { k } = session.config.policy
  const { keys } = cache!.layer(layer)
  const searched = { ...sources.chunks[0], keys, count: cache!.zones(layer).retrieval }
  const queries = await makeQueries(gpu, searched, 77 + layer)
  const { indices } = await session.retrieve(layer, { queries })
  const step = { layer: searched, policy: { k }, buffers: { chosen: scratch.get('chosen') } } as unknown as Step
  const exact = await exactTop(gpu, step)
  let hits = 0
  for (let h = 0; h < HEADS; h++) {
    const mine = new Set(indices.subarray(h * k, (h + 1) * k))
    for (const id of exact.subarray(h * k, (h + 1) * k)) if (mine.has(SINK + id)) hits++
  }
  return hits / (HEADS * k)
}
