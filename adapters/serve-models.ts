import { basename, resolve } from 'node:path'
import type { OpenAiOptions } from '../sdk/http/openai.ts'
import { type Device, ParisError } from '../sdk/index.ts'
import { loadModel, type Model } from '../sdk/llm/index.ts'
import { createEngine } from './node.ts'
import { openModelFolder } from './node-files.ts'
import { progressBar } from './progress.ts'

/**
 * Model folders under their own names, each loaded and warmed when it is asked for, on an engine of its own.
 * @throws ParisError `bad_config` where two have one name
 */
export function modelsOf(folders: readonly string[], device: Device): OpenAiOptions['models'] {
  const models = new Map<string, () => Promise<Model>>()
  for (const folder of folders) {
    const name = basename(resolve(folder))
    if (name === '' || models.has(name))
      throw new ParisError('bad_config', {
        where: '--model',
        got: name === '' ? JSON.stringify(folder) : `two folders called ${JSON.stringify(name)}`,
        want: 'folders of different names',
        fix: 'Rename one of them: requests name a model by its folder.',
      })
    models.set(name, () => load(name, folder, device))
  }
  return Object.fromEntries(models)
}

async function load(name: string, folder: string, device: Device): Promise<Model> {
  const source = await openModelFolder(folder)
  const engine = await createEngine({ device })
  try {
    const bar = progressBar(name)
    const model = await loadModel({ engine, source, onProgress: ({ done, total }) => bar(done, total) })
    await model.warm({ capacity: model.config.maxPositions })
    return model
  } catch (error) {
    await engine.dispose()
    throw error
  }
}
