import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { type Context, type GenerateOptions, generate, type Model } from '../../sdk/llm/index.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectSame } from '../support/repeat.ts'
import { bytesOf, refused, streamOf } from '../support/sessions.ts'
import { fixturePath, type Golden, goldenOf, largestDifference, modelOn } from './models.ts'

const path = fixturePath('qwen3-untied-bf16')
const { input_ids: INPUT } = goldenOf<Golden>(path)

// On a software GPU a step takes half a second.
vi.setConfig({ testTimeout: 300_000 })
afterAll(() => vi.resetConfig())

/** Retrieves from the first dozens of tokens on. */
const POLICY = { k: 8, sink: 4, local: 16, update: 8, denseBelow: 0 }

async function idsOf(model: Model, options: GenerateOptions): Promise<number[]> {
  const ids: number[] = []
  for await (const { id } of generate(model, options)) ids.push(id)
  return ids
}

onEveryBackend('generate', (backend) => {
  let model: Model
  let held = 0
  beforeAll(async () => {
    model = await modelOn(backend(), path)
    await idsOf(model, { ids: INPUT.slice(0, 60), maxTokens: 2, policy: POLICY })
  }, 300_000)
  beforeEach(() => {
    held = backend().allocated()
  })
  afterAll(() => model?.dispose())
  const open = (capacity = 160) => model.createContext({ capacity, policy: POLICY })
  const longRun = { ids: INPUT.slice(0, 60), maxTokens: 12, policy: POLICY, ignoreEos: true, temperature: 1, seed: 9 }

  it('draws the same tokens for a seed, and frees what it took', async () => {
    const first = await idsOf(model, longRun)
    expect(first).toHaveLength(12)
    expect(await idsOf(model, longRun)).toEqual(first)
    expect(await idsOf(model, { ...longRun, seed: 10 })).not.toEqual(first)
    expect(backend().allocated()).toBe(held)
  })

  it('a step is what a prompt of the same tokens is, where attention is full', async () => {
    await using a = await model.createContext({ capacity: 64, attention: 'full' })
    await using b = await model.createContext({ capacity: 64, attention: 'full' })
    await a.prompt(INPUT.slice(0, 40))
    const stepped = await a.step(INPUT[40], { ahead: true })
    const again = await a.step(INPUT[41], { ahead: true })
    // Pieces of 38 and 3: a GPU compiles its programs for 1, 2, 4 and 8 tokens, here for 1 and 4, and for many.
    const whole = await b.prompt(INPUT.slice(0, 41), { chunk: 38 })
    expect(largestDifference(stepped, whole)).toBeLessThan(2e-3)
    expect(largestDifference(again, await b.prompt([INPUT[41]]))).toBeLessThan(2e-3)
    expect((await a.stats()).layers.map(({ zones }) => zones.retrieval)).toEqual([0, 0])
  })

  it('retrieves with paris, and audits its recall', async () => {
    await using context = await model.createContext({ capacity: 160, policy: { ...POLICY, auditEvery: 4 } })
    const options = { context, ids: INPUT.slice(0, 100), maxTokens: 9, ignoreEos: true }
    const audited = await idsOf(model, options)
    const stats = await context.stats()
    expect(stats.layers[0].length).toBe(108)
    expect(stats.recall.audits).toBeGreaterThan(0)
    expect(stats.recall.mean).toBeGreaterThan(0.5)
    await using plain = await open()
    expect(await idsOf(model, { ...options, context: plain })).toEqual(audited)
  })

  it('a snapshot goes on as if nothing had been', async () => {
    const whole = await idsOf(model, { ...longRun, temperature: 0 })
    await using context = await open()
    const begun: number[] = []
    let kept: { tokens: readonly number[]; cache: Uint8Array } | undefined
    for await (const { id } of generate(model, { ...longRun, temperature: 0, policy: undefined, context })) {
      begun.push(id)
      if (begun.length !== 5) continue
      const { tokens, cache } = await context.snapshot()
      kept = { tokens, cache: await bytesOf(cache) }
    }
    expect(begun).toEqual(whole)
    const { tokens, cache } = kept!
    await using restored = await model.restoreContext({ tokens, cache: streamOf(cache) })
    expect(restored.tokens).toEqual([...longRun.ids, ...whole.slice(0, 5)])
    const rest = await idsOf(model, { context: restored, maxTokens: 7, ignoreEos: true })
    expect(rest).toEqual(whole.slice(5))
    await refused(model.restoreContext({ tokens: tokens.slice(0, 5), cache: streamOf(cache) }), 'snapshot_mismatch')
  })

  it('what was prepared and never used leaves no trace', async () => {
    await using a = await open()
    await using b = await open()
    for (const context of [a, b]) {
      const ahead = context === a
      await context.prompt(INPUT.slice(0, 62))
      for (const id of INPUT.slice(62, 70)) await context.step(id, { ahead })
      await context.truncate(66)
      for (const id of INPUT.slice(70, 76)) await context.step(id)
    }
    const [got, want] = await Promise.all([a, b].map(async (context) => bytesOf((await context.snapshot()).cache)))
    expectSame(got, want, 'snapshot')
  })

  it('a fork attends its own way, from the same prompt', async () => {
    await using paris = await open()
    await paris.prompt(INPUT.slice(0, 100))
    await using full = await paris.fork({ attention: 'full' })
    await using back = await full.fork({ policy: POLICY })
    await using fresh = await model.createContext({ capacity: 160, attention: 'full' })
    await fresh.prompt(INPUT.slice(0, 100))
    expect(full.tokens).toEqual(paris.tokens)
    expect(largestDifference(await full.step(7), await fresh.step(7))).toBeLessThan(1e-4)
    const [got, want] = [await back.step(7), await paris.step(7)]
    expectSame(new Uint8Array(got.slice().buffer), new Uint8Array(want.slice().buffer), 'logits')
  })

  it('goes on with a context, with or without more prompt', async () => {
    await using context = await open()
    await idsOf(model, { context, ids: INPUT.slice(0, 50), maxTokens: 3, ignoreEos: true })
    expect([context.tokens.length, context.length]).toEqual([53, 52])
    await idsOf(model, { context, ids: INPUT.slice(50, 52), maxTokens: 2, ignoreEos: true })
    expect([context.tokens.length, context.length]).toEqual([57, 56])
    await context.step()
    expect(await idsOf(model, { context, maxTokens: 1, ignoreEos: true })).toHaveLength(1)
    expect([context.tokens.length, context.length]).toEqual([58, 57])
  })

  it('a batch decodes as its sequences do alone', async () => {
    const lengths = [40, 57, 70]
    const alone: Context[] = await Promise.all(lengths.map(() => open(100)))
    const together: Context[] = await Promise.all(lengths.map(() => open(100)))
    for (const contexts of [alone, together])
      for (const [i, context] of contexts.entries()) await context.prompt(INPUT.slice(i, i + lengths[i]))
    for (let n = 0; n < 2; n++) {
      const got = await model.decodeBatch(
        together.map((context, i) => ({ context, id: INPUT[100 + 10 * i + n] })),
        { ahead: n < 1 },
      )
      for (const [i, context] of alone.entries()) {
        const want = await context.step(INPUT[100 + 10 * i + n])
        expect(largestDifference(got[i], want), `step ${n} of ${i}`).toBeLessThan(1e-3)
      }
    }
    const [context] = together
    await refused(
      model.decodeBatch([
        { context, id: 1 },
        { context, id: 2 },
      ]),
      'bad_config',
    )
    for (const one of [...alone, ...together]) await one.dispose()
    await refused(model.decodeBatch([{ context, id: 1 }]), 'bad_config')
  })

  describe('aborts', () => {
    it('while generating: refused as aborted, and everything is freed', async () => {
      const abort = new AbortController()
      const ids: number[] = []
      const run = async () => {
        for await (const { id } of generate(model, { ...longRun, signal: abort.signal }))
          if (ids.push(id) === 3) abort.abort()
      }
      await refused(run(), 'aborted')
      expect(ids).toHaveLength(3)
      expect(backend().allocated()).toBe(held)
    })

    it('while the prompt goes through: the context is as it was', async () => {
      await using context = await open()
      await context.prompt(INPUT.slice(0, 40))
      const abort = new AbortController()
      const prompt = context.prompt(INPUT.slice(40, 110), {
        chunk: 35,
        signal: abort.signal,
        onProgress: () => abort.abort(),
      })
      await refused(prompt, 'aborted')
      expect([context.length, context.tokens.length]).toEqual([40, 40])
      expect((await context.stats()).layers.map(({ length }) => length)).toEqual([40, 40])
    })

    it('a loop that is left frees what it took', async () => {
      for await (const { id } of generate(model, longRun)) if (id >= 0) break
      expect(backend().allocated()).toBe(held)
    })
  })

  it.each<[string, GenerateOptions, Parameters<typeof refused>[1], string]>([
    ['no prompt', {}, 'bad_prompt', 'no prompt'],
    ['an empty prompt', { ids: [] }, 'bad_prompt', 'no tokens'],
    ['two prompts', { ids: [1], prompt: 'a' }, 'bad_prompt', 'several'],
    ['text without a tokenizer', { prompt: 'a' }, 'bad_prompt', 'tokenizer.json'],
    ['an id beyond the vocabulary', { ids: [1, 160] }, 'bad_prompt', '160 at 1'],
    ['a prompt longer than the capacity', { ids: INPUT, capacity: 200 }, 'capacity', '300 tokens'],
    ['no tokens asked for', { ids: [1], maxTokens: 0 }, 'bad_config', '0'],
    ['an empty stop string', { ids: [1], stop: [''] }, 'bad_config', '""'],
    ['another attention', { ids: [1], attention: 'some' as 'full' }, 'bad_config', '"some"'],
    ['a temperature below 0', { ids: [1], temperature: -1 }, 'bad_config', '-1'],
  ])('%s is refused, and nothing is taken', async (_, options, code, told) => {
    const error = await refused(idsOf(model, options), code)
    expect(error.got).toContain(told)
    expect(backend().allocated()).toBe(held)
  })
})

onEveryBackend('warming a model', (backend, name) => {
  const options = { capacity: 160, policy: POLICY }

  it('checks its options, leaves nothing behind, and nothing to compile to what follows', async () => {
    const model = await modelOn(backend(), path)
    const held = backend().allocated()
    await Promise.all([model.warm(options), model.warm(options)])
    expect(backend().allocated()).toBe(held)
    await refused(model.warm({ capacity: 0 }), 'bad_config')
    const compiled: (string | undefined)[] = []
    const device = model.engine.gpu
    const create = device?.createComputePipeline.bind(device)
    if (device && create)
      device.createComputePipeline = (what) => {
        compiled.push(what.label)
        return create(what)
      }
    try {
      await idsOf(model, { ids: INPUT.slice(0, 60), maxTokens: 3, policy: POLICY, ignoreEos: true })
    } finally {
      if (device && create) device.createComputePipeline = create
    }
    expect(device !== undefined).toBe(name === 'webgpu')
    expect(compiled).toEqual([])
    await model.dispose()
    await refused(model.warm(options), 'disposed')
  })
})
