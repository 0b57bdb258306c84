import { pathToFileURL } from 'node:url'
import { makeHaystack } from '../../examples/support/haystack.ts'
import type { PolicyOptions } from '../../sdk/config.ts'
import type { Context } from '../../sdk/llm/context.ts'
import type { Model } from '../../sdk/llm/model.ts'
import { ROOM, seated } from './gpu-llm-cache.ts'
import type { Report } from './gpu-report.ts'
import { uniform } from './offload-data.ts'
import { attentionOf, compareWays, type Setting } from './offload-ways.ts'

/** A context that read a text with hidden numbers, its rows on the device. */
export async function openRead(model: Model, folder: string, length: number, policy: PolicyOptions): Promise<Context> {
  const { text } = makeHaystack(pathToFileURL(`${folder}/`), length, 64, 1)
  const ids = model.tokenizer!.encode(text).slice(0, length)
  const context = await model.createContext({ capacity: length + ROOM, ...attentionOf('never', policy) })
  let told = performance.now()
  await context.prompt(ids, {
    onProgress: ({ done, total }) => {
      if (performance.now() - told < 5000) return
      told = performance.now()
      console.log(`   read ${done} of ${total} tokens`)
    },
  })
  return context
}

/** A context over random rows: times do not depend on them, hits do. */
export async function openRandom(model: Model, length: number, policy: PolicyOptions): Promise<Context> {
  const opened = await model.createContext({ capacity: length + ROOM, ...attentionOf('never', policy) })
  const { layers, kvHeads, headDim } = model.config
  const next = uniform(3)
  const rows = () => ({
    dtype: 'bf16' as const,
    // Of either sign, from 1/8 to 2.
    data: Uint16Array.from({ length: kvHeads * length * headDim }, () => {
      return (next() < 0.5 ? 0x8000 : 0) | (0x3e00 + Math.floor(next() * 512))
    }),
  })
  for (let l = 0; l < layers; l++) await opened.session.append(l, { keys: rows(), values: rows() })
  return seated(opened, length)
}

/** All ways over forks of one context. */
export async function compareForks(
  out: Report,
  model: Model,
  base: Context,
  { policy, ...setting }: Setting & { readonly policy: PolicyOptions },
): Promise<void> {
  await compareWays(out, model, setting, (way) => base.fork(attentionOf(way, policy)))
}
