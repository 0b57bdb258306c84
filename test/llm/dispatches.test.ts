import { expect, it, vi } from 'vitest'
import { watchDispatches } from '../support/dispatches.ts'
import { openWebgpu } from '../support/gpu.ts'
import { fixturePath, type Golden, goldenOf, modelOn } from './models.ts'

// On a software GPU compiling takes seconds.
vi.setConfig({ testTimeout: 300_000 })

const path = fixturePath('qwen3-untied-bf16')
const { input_ids: ids } = goldenOf<Golden>(path)
/** Keys and values lie in GPUBuffers of their own, so they are stored apart. */
const CACHE = ['store', 'store', 'attend', 'merge']
const layersOf = (cache: string[]) => {
  const layer = ['linear-few', 'rope', ...cache, 'linear-few', 'linear-few', 'linear-few']
  return ['lookup', ...layer, ...layer, 'norm', 'linear-few']
}

it('a layer is five dispatches beside its cache, for a step of one sequence or several and a prompt of one token', async () => {
  const backend = await openWebgpu()
  const model = await modelOn(backend, path)
  const open = () => model.createContext({ capacity: 40, store: 'f32' })
  const contexts = [await open(), await open()]
  for (const context of contexts) await context.prompt([ids[0]])
  const names = watchDispatches(backend.device)
  const ofModel = () => names.splice(0).filter((name) => !['store', 'attend', 'merge', 'dense'].includes(name))
  await contexts[0].step(ids[20])
  expect(names.splice(0)).toEqual(layersOf(CACHE))
  await contexts[0].prompt([ids[21]])
  expect(ofModel()).toEqual(layersOf([]))
  await model.decodeBatch(contexts.map((context, t) => ({ context, id: ids[22 + t] })))
  expect(ofModel()).toEqual(layersOf([]))
  for (const context of contexts) await context.dispose()
  await model.dispose()
  backend.dispose()
})
