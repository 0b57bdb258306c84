import { attendStep } from '../attend/attention.ts'
import type { Backend } from '../backend.ts'
import { memoryPages } from '../cache/pages.ts'
import { zonesOf } from '../cache/zones.ts'
import type { SessionConfig } from '../config.ts'
import { SessionState } from './state.ts'

/**
 * Compiles, where the backend has pipelines, those that sessions of this configuration use: the calls are those of a
 * session at full capacity, on a few bytes of memory, since nothing is run.
 */
export async function warmSteps(backend: Backend, config: SessionConfig): Promise<void> {
  if (!backend.warm) return
  const state = new SessionState(
    backend,
    { ...config, shape: { ...config.shape, layers: 1 }, capacity: 1 },
    memoryPages,
  )
  try {
    const cache = await state.open(config.store ?? 'f32')
    const layer = { ...cache.layer(0), length: config.capacity, offload: undefined }
    const { keys, values, summary } = layer
    const { rotation, store } = cache
    const { scratch } = state
    const { kvHeads: heads, group } = config.shape
    const [queries, output, lse] = ['queries', 'output', 'lse'].map((name) => scratch.get(name))
    await backend.warm(() => {
      if (backend.recorder)
        for (const dtype of new Set(['f32', store] as const))
          backend.store([
            { tokens: queries, dtype, heads, count: 1, rows: keys, at: 0, refused: scratch.get('refused') },
          ])
      if (zonesOf(config.capacity, config.policy).retrieval > 0)
        backend.encode([{ keys, heads, from: 0, count: 1, rotation, summary, at: 0 }])
      attendStep(backend, [{ config, rotation, layer, scratch, queries }])
      backend.dense([{ queries, tokens: 1, first: 0, keys, values, heads, group, scale: config.scale, output, lse }])
    })
  } finally {
    await state.dispose()
  }
}
