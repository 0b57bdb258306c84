import { createEngine } from '../../adapters/node.ts'
import type { CallOptions } from '../../sdk/calls.ts'
import type { Device } from '../../sdk/index.ts'
import { type Context, loadModel, type Model, type ModelSource } from '../../sdk/llm/index.ts'

/** Reads prompts for the decoder, which may run on another engine. */
export interface Reader {
  /** An exact context of `model` that holds these tokens. */
  read(model: Model, ids: readonly number[], capacity: number, options: CallOptions): Promise<Context>
  dispose(): Promise<void>
}

const contextOptions = (capacity: number) => ({ capacity, attention: 'full', store: 'bf16' }) as const

/** On the decoder's own engine. */
export const readHere: Reader = {
  async read(model, ids, capacity, options) {
    const context = await model.createContext(contextOptions(capacity))
    await context.prompt(ids, options)
    return context
  },
  async dispose() {},
}

/** On a device of its own; the cache comes over as a snapshot. @throws ParisError `backend_unavailable` */
export async function readOn(device: Device, source: ModelSource): Promise<Reader> {
  const engine = await createEngine({ device })
  const reader = await loadModel({ engine, source })
  return {
    async read(model, ids, capacity, options) {
      const context = await readHere.read(reader, ids, capacity, options)
      const copy = await model.restoreContext(await context.snapshot())
      await context.dispose()
      return copy
    },
    dispose: () => engine.dispose(),
  }
}
