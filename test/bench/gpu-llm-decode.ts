import { attendStep } from '../../sdk/attend/attention.ts'
import type { Buf } from '../../sdk/backend.ts'
import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import type { LinearJob } from '../../sdk/kernels/linear.ts'
import type { Context } from '../../sdk/llm/context.ts'
import type { Model } from '../../sdk/llm/model.ts'
import { greedy } from '../../sdk/llm/sampler.ts'
import type { Weight, Weights } from '../../sdk/llm/weights.ts'
import { DIM, GROUP, HEADS } from './gpu-data.ts'
import type { Stamps } from './gpu-stamps.ts'

const WIDE = HEADS * GROUP * DIM

/** Greedy decoding of several contexts together: seconds of each step on the clock, milliseconds of it on the device. */
export interface Decoded {
  readonly steps: number
  /** Milliseconds a step: the mean and the median on the clock, the mean on the device (NaN without stamps). */
  readonly wall: number
  readonly middle: number
  readonly gpu: number
  /** Of all contexts together. */
  readonly tokensPerSecond: number
  /** The largest |logit| of the last step. */
  readonly largest: number
}

const sum = (values: readonly number[]) => values.reduce((all, value) => all + value, 0)
const median = (values: number[]) => [...values].sort((a, b) => a - b)[values.length >> 1]

/** Steps of a `decode`. */
export interface Pace {
  readonly warm: number
  readonly steps: number
  /** Steps that are stamped on the device, behind those on the clock. By default those on the clock are, all together. */
  readonly stamped?: number
  /** Milliseconds; `performance.now` by default. */
  readonly clock?: () => number
}

/**
 * @param stamps of the device's time, where it has a clock
 * @throws Error where a logit is not finite, or where two steps give the same logits
 */
export async function decode(
  model: Model,
  contexts: readonly Context[],
  stamps: Stamps | undefined,
  { warm, steps, stamped = 0, clock = () => performance.now() }: Pace,
): Promise<Decoded> {
  let ids = contexts.map((_, i) => (40_503 * (i + 1)) % model.config.vocabulary)
  let logits: Float32Array[] = []
  const step = async (ahead: boolean) => {
    const items = contexts.map((context, i) => ({ context, id: ids[i] }))
    logits = await model.decodeBatch(items, { ahead })
    ids = logits.map(greedy)
  }
  await step(true)
  const first = logits.map((row) => row.slice(0, 64).join())
  for (const row of logits) checkFinite(row)
  for (let i = 1; i < warm; i++) await step(true)
  const times: number[] = []
  const run = async (count: number, into?: number[]) => {
    for (let i = 0; i < count; i++) {
      const from = clock()
      await step(i + 1 < count)
      into?.push(clock() - from)
    }
  }
  const together = stamps && stamped === 0
  const spans = together ? await stamps.watch(() => run(steps, times)) : []
  if (!together) await run(steps, times)
  const alone = stamps && stamped > 0 ? await stamps.watch(() => run(stamped)) : []
  const largest = Math.max(...logits.map(checkFinite))
  if (logits.some((row, i) => row.slice(0, 64).join() === first[i])) throw new Error('two steps gave the same logits')
  const wall = sum(times) / steps
  // Of the first step on the clock nothing was recorded while watched; a step is several encoders.
  const gpu = together ? sum(spans) / (steps - 1) : sum(alone) / stamped
  return { steps, wall, middle: median(times), gpu, tokensPerSecond: (1e3 * contexts.length) / wall, largest }
}

function checkFinite(row: Float32Array): number {
  let most = 0
  for (const value of row) {
    if (!Number.isFinite(value)) throw new Error(`a logit is ${value}`)
    most = Math.max(most, Math.abs(value))
  }
  return most
}

/** The attention of one token of every context, all layers, over random queries. */
export function attentionOf(gpu: WebgpuBackend, contexts: readonly Context[]): () => void {
  for (const [i, { session }] of contexts.entries()) {
    const queries = Float32Array.from({ length: WIDE }, (_, j) => 1.7 * Math.sin(j * 12.9898 + i * 78.233))
    gpu.write(session.state.scratch.get('queries'), 0, new Uint8Array(queries.buffer))
  }
  return () => {
    for (let l = 0; l < contexts[0].config.shape.layers; l++)
      attendStep(
        gpu,
        contexts.map(({ session: { config, state } }) => {
          const { scratch, cache } = state
          const [rotation, layer] = [cache!.rotation, cache!.layer(l)]
          return { config, rotation, layer, scratch, queries: scratch.get('queries') }
        }),
      )
  }
}

/** The matrices of every layer, and that of the vocabulary, applied to `tokens` tokens with nothing between. */
export async function matricesOf(gpu: WebgpuBackend, { config }: Model, weights: Weights, tokens: number) {
  const { hidden, inner, vocabulary } = config
  const sizes = { wide: [Math.max(inner, WIDE)], three: [WIDE, HEADS * DIM, HEADS * DIM], two: [inner, inner] }
  const requests = Object.entries({ ...sizes, one: [hidden], logits: [vocabulary] }).flatMap(([together, widths]) =>
    widths.map((width) => ({ label: together, bytes: tokens * width * 4, together: `timed ${together}` })),
  )
  const all = await gpu.alloc(requests)
  const [input, q, k, v, gate, up, one, logits] = all
  const x = Float32Array.from({ length: input.bytes / 4 }, (_, i) => Math.sin(i * 12.9898) * 1.5)
  gpu.write(input, 0, new Uint8Array(x.buffer))
  const job = ({ buf, dtype }: Weight, inputs: number, outputs: number, output: Buf): LinearJob => {
    return { input, tokens, weights: buf, dtype, inputs, outputs, add: false, output }
  }
  const layers = () => {
    for (const w of weights.layers) {
      const narrow = HEADS * DIM
      gpu.linear([job(w.q!, hidden, WIDE, q), job(w.k!, hidden, narrow, k), job(w.v!, hidden, narrow, v)])
      gpu.linear([job(w.o!, WIDE, hidden, one)])
      gpu.linear([job(w.gate!, hidden, inner, gate), job(w.up!, hidden, inner, up)])
      gpu.linear([job(w.down!, inner, hidden, one)])
    }
  }
  const head = () => gpu.linear([job(weights.head, hidden, vocabulary, logits)])
  return { layers, head, free: () => gpu.free(all) }
}
