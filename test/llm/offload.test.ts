import { expect, it } from 'vitest'
import { openModelFolder } from '../../adapters/node-files.ts'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { generate, loadModel } from '../../sdk/llm/index.ts'
import { onEveryBackend } from '../support/backends.ts'
import { watchedPages } from '../support/offload.ts'
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

  it('goes on while its session is read', async () => {
    const path = fixturePath('qwen3-untied-bf16')
    const { input_ids: ids } = goldenOf<Golden>(path)
    const policy: PolicyOptions = { k: 4, sink: 4, local: 8, update: 2, denseBelow: 0, hotRows: 4, coarse: 'collision' }
    const reads: Promise<unknown>[] = []
    let read = () => {}
    // In the middle of a step: it has to wait for its turn, and the step's next layer for it.
    const { open } = watchedPages(({ kind }) => {
      if (kind === 'gather') read()
    })
    const model = await loadModel({ engine: new Engine(backend(), [], open), source: await openModelFolder(path) })
    const said = async (disturbed: boolean) => {
      const placed = { capacity: 200, store: 'f32' as const, policy: { ...policy, offload: 'always' as const } }
      await using context = await model.createContext(placed)
      await context.prompt(ids.slice(0, 60))
      const { session } = context
      const queries = new Float32Array(session.config.shape.queryHeads * session.config.shape.headDim).fill(1)
      read = () => {
        if (disturbed) reads.push(session.retrieve(0, { queries }))
      }
      const out: number[] = []
      for await (const { id } of generate(model, { context, maxTokens: 8, ignoreEos: true })) out.push(id)
      read = () => {}
      await Promise.all(reads)
      return out
    }
    const undisturbed = await said(false)
    expect(await said(true)).toEqual(undisturbed)
    expect(reads.length).toBeGreaterThan(8)
    await model.dispose()
  }, 600_000)
})
