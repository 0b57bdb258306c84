import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import type { Engine } from '../../sdk/engine.ts'
import type { Context } from '../../sdk/llm/context.ts'
import { openFilled, type Sources } from './gpu-llm-cache.ts'
import { configOf, makeModel } from './gpu-llm-model.ts'
import { Images, openAway } from './gpu-llm-pages.ts'
import { queriesOf } from './offload-data.ts'
import { firstDifference } from './offload-table.ts'

const FORCED = [5, 777]

/**
 * Fills two caches of two chunks of a small model, rows on the host and on the device, and holds them against each other:
 * codes against rows, steps, exact attention over everything, logits.
 * @throws Error where they differ
 */
export async function checkAway(engine: Engine, gpu: WebgpuBackend, sources: Sources): Promise<string> {
  const { model } = await makeModel(engine, gpu, configOf(true))
  const length = 2 * sources.tokens
  const images = await Images.read(gpu, sources, length)
  const policy = { denseBelow: 512 }
  const options = { length, shift: 1 }
  const away = await openAway(model, gpu, { sources, images }, { ...options, policy })
  const here = await openFilled(model, gpu, sources, { ...options, policy: { ...policy, offload: 'never' } })
  for (const { session } of [away, here]) {
    const { ok, problems } = await session.check()
    if (!ok) throw new Error(problems.join('; '))
  }
  const queries = Array.from({ length: model.config.layers }, (_, l) => queriesOf(l, 1))
  const steps = await attended(away, queries, length)
  const different = firstDifference(steps, await attended(here, queries, length))
  if (different) throw new Error(`attention: ${different}`)
  const logits = await forced(away)
  const other = firstDifference(logits, await forced(here))
  if (other) throw new Error(`logits: ${other}`)
  const { hits, misses } = (await away.stats()).offload!
  await model.dispose()
  return `rows on the host and on the device: codes are those of the rows; ${steps.length} attentions and ${logits.length} tokens of logits equal to the bit; ${misses} of ${hits + misses} rows fetched`
}

/** Of every layer a decode step, and exact attention to the first tokens, which comes from pages where rows are there. */
async function attended({ session }: Context, all: readonly Float32Array[], length: number): Promise<Float32Array[]> {
  const found: Float32Array[] = []
  for (const [l, queries] of all.entries()) {
    const step = await session.attend(l, { queries })
    const exact = await session.attendRange(l, { queries, from: 0, to: length >> 1 })
    found.push(step.output, step.lse, exact.output, exact.lse)
  }
  return found
}

async function forced(context: Context): Promise<Float32Array[]> {
  const logits: Float32Array[] = []
  for (const id of FORCED) logits.push((await context.step(id)).slice())
  return logits
}
