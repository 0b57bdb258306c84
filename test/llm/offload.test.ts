import { expect, it } from 'vitest'
import { generate } from '../../sdk/llm/index.ts'
import { onEveryBackend } from '../support/backends.ts'
import { fixturePath, type Golden, goldenOf, largestDifference, modelOn } from './models.ts'

onEveryBackend('a model whose rows are on the host', (backend) => {
  it('says what it says with rows on the device', async () => {
    const path = fixturePath('qwen3-untied-bf16')
    const { input_ids: ids } = goldenOf<Golden>(path)
    const model = await modelOn(backend(), path)
    const policy = { k: 4, sink: 4, local: 8, update: 4, denseBelow: 0, hotRows: 6 }
    const said = async (offload: 'always' | 'never') => {
      await using context = await model.createContext({ capacity: 400, store: 'f32', policy: { ...policy, offload } })
      const logits = await context.prompt(ids.slice(0, 120), { chunk: 50 })
      const out: number[] = []
      for await (const { id } of generate(model, { context, maxTokens: 24, ignoreEos: true })) out.push(id)
      return { logits, out, stats: await context.stats(), pages: context.memory().pages }
    }
    const [host, device] = [await said('always'), await said('never')]
    expect(host.pages).toBeGreaterThan(0)
    expect(host.stats.offload!.hits + host.stats.offload!.misses).toBeGreaterThan(0)
    expect(device.pages).toBeUndefined()
    expect(largestDifference(host.logits, device.logits)).toBeLessThan(2e-3)
    expect(host.out).toEqual(device.out)
    expect(host.stats.layers).toEqual(device.stats.layers)
    await model.dispose()
  }, 600_000)
})
