import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Backend } from '../../sdk/backend.ts'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { ParisError } from '../../sdk/errors.ts'
import { type Context, type GenerateOptions, generate, type Model } from '../../sdk/llm/index.ts'
import { onEveryBackend } from '../support/backends.ts'
import { compileKernels } from '../support/kernels-wasm.ts'
import { bytesOf, refused, streamOf } from '../support/sessions.ts'
import { fixturePath, type Golden, goldenOf, modelOn } from './models.ts'

const path = fixturePath('qwen3-untied-bf16')
const { input_ids: INPUT } = goldenOf<Golden>(path)
const kernels = compileKernels()

vi.setConfig({ testTimeout: 300_000 })
afterAll(() => vi.resetConfig())

async function idsOf(model: Model, options: GenerateOptions): Promise<number[]> {
  const ids: number[] = []
  for await (const { id } of generate(model, options)) ids.push(id)
  return ids
}

describe('contexts', () => {
  let backend: Backend
  let model: Model
  let context: Context
  beforeAll(async () => {
    backend = await createWasmBackend(kernels)
    model = await modelOn(backend, path)
  })
  beforeEach(async () => {
    context = await model.createContext({ capacity: 64 })
    await context.prompt(INPUT.slice(0, 10))
  })
  afterEach(() => context.dispose())
  afterAll(async () => {
    await model?.dispose()
    backend?.dispose()
  })

  it.each([Number.NaN, 0, -1, 1.5, Number.POSITIVE_INFINITY, '8' as unknown as number])(
    'a chunk of %s is refused, and nothing changes',
    async (chunk) => {
      await refused(context.prompt(INPUT.slice(10, 20), { chunk }), 'bad_config')
      expect([context.length, context.tokens.length]).toEqual([10, 10])
      const held = backend.allocated()
      const error = await refused(idsOf(model, { ids: INPUT.slice(0, 10), chunk }), 'bad_config')
      expect(error.where).toBe('generate(chunk)')
      expect(backend.allocated()).toBe(held)
    },
  )

  it.each<[string, (context: Context) => Promise<unknown>, number[]]>([
    ['a prompt', (one) => one.prompt(INPUT.slice(10, 20)), INPUT.slice(0, 20)],
    ['a step', (one) => one.step(INPUT[10]), INPUT.slice(0, 11)],
    ['a truncation', (one) => one.truncate(5), INPUT.slice(0, 5)],
  ])('accepts nothing while %s is under way', async (_, change, tokens) => {
    await using other = await model.createContext({ capacity: 64 })
    const call = change(context)
    await refused(() => context.accept(7), 'busy')
    other.accept(7)
    await call
    expect(context.tokens).toEqual(tokens)
    expect(context.length).toBe(tokens.length)
    context.accept(7)
    expect(context.tokens.at(-1)).toBe(7)
    await context.step()
  })

  it('an abort before the first token keeps the last one of a context', async () => {
    const abort = new AbortController()
    const first = generate(model, { context, maxTokens: 2, signal: abort.signal }).next()
    abort.abort()
    await refused(first, 'aborted')
    expect(context.tokens).toEqual(INPUT.slice(0, 10))
    await using fresh = await model.createContext({ capacity: 64 })
    const options = { maxTokens: 3, temperature: 0, ignoreEos: true }
    const want = await idsOf(model, { ...options, context: fresh, ids: INPUT.slice(0, 10) })
    expect(await idsOf(model, { ...options, context })).toEqual(want)
  })

  it('generates with contexts of its own model only, and opens none with options beside one', async () => {
    const options = [{ capacity: 64 }, { attention: 'full' }, { policy: { k: 8 } }, { store: 'f32' }] as const
    for (const beside of options) {
      const error = await refused(idsOf(model, { context, ids: [1], ...beside }), 'bad_config')
      expect(error.where).toBe(`generate(${Object.keys(beside)[0]})`)
    }
    await using second = await modelOn(backend, path)
    for (const given of [{}, null, 7, context])
      await refused(idsOf(given === context ? second : model, { context: given as Context, ids: [1] }), 'bad_config')
    expect(context.tokens).toEqual(INPUT.slice(0, 10))
  })

  it('is closed where its cache cannot be taken back, and tells what failed first', async () => {
    const truncate = vi.spyOn(context.session, 'truncate').mockRejectedValue(new Error('no way back'))
    const abort = new AbortController()
    const options = { chunk: 4, signal: abort.signal, onProgress: () => abort.abort() }
    await refused(context.prompt(INPUT.slice(10, 20), options), 'aborted')
    expect(truncate).toHaveBeenCalled()
    expect(context.disposed).toBe(true)
    for (const call of [() => context.step(1), () => context.prompt([1])]) await refused(call, 'disposed')
    await refused(model.decodeBatch([{ context, id: 1 }]), 'bad_config')
  })

  it('refuses to be opened, or compiled for, without options', async () => {
    for (const options of [undefined, null]) {
      await refused(model.createContext(options as never), 'bad_config')
      await refused(model.warm(options as never), 'bad_config')
    }
  })

  it('stays open where its device is lost', async () => {
    const lost = new ParisError('device_lost', { where: 'a test', got: 'none', want: 'a device', fix: 'Recover.' })
    const truncate = vi.spyOn(context.session, 'truncate').mockRejectedValue(lost)
    const abort = new AbortController()
    const options = { chunk: 4, signal: abort.signal, onProgress: () => abort.abort() }
    await refused(context.prompt(INPUT.slice(10, 20), options), 'aborted')
    expect(truncate).toHaveBeenCalled()
    expect(context.disposed).toBe(false)
  })
})

it('no context outlives its model', async () => {
  const backend = await createWasmBackend(kernels)
  const model = await modelOn(backend, path)
  const context = await model.createContext({ capacity: 64 })
  await context.prompt(INPUT.slice(0, 10))
  const { tokens, cache } = await context.snapshot()
  const kept = { tokens, cache: streamOf(await bytesOf(cache)) }
  const opening = [context.fork(), model.createContext({ capacity: 64 }), model.restoreContext(kept)]
  const disposed = model.dispose()
  await Promise.all(opening.map((one) => refused(one, 'disposed')))
  await disposed
  expect(backend.allocated()).toBe(0)
  await refused(context.prompt([1]), 'disposed')
  await refused(context.step(1), 'disposed')
  expect(backend.allocated()).toBe(0)
  backend.dispose()
})

onEveryBackend('a context while its snapshot is read', (backend) => {
  it('steps on', async () => {
    await using model = await modelOn(backend(), fixturePath('qwen2-bias-f32'))
    const policy = { k: 8, sink: 4, local: 8, update: 4, denseBelow: 0 }
    await using context = await model.createContext({ capacity: 64, policy })
    expect(context.config.policy.normWeighted).toBe(true)
    await context.prompt(INPUT.slice(0, 40))
    const { tokens, cache } = await context.snapshot()
    for (const id of INPUT.slice(40, 42)) await context.step(id, { ahead: true })
    await using restored = await model.restoreContext({ tokens, cache: streamOf(await bytesOf(cache)) })
    expect([restored.length, context.length]).toEqual([40, 42])
  })
})
