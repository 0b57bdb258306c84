import type { Backend, Buf } from '../backend.ts'
import type { LinearJob } from '../kernels/linear.ts'
import type { ModelConfig } from './config.ts'
import { ropeTable } from './rope-scaling.ts'
import type { LayerWeights, Weight, Weights } from './weights.ts'
import type { Workspace } from './workspace.ts'

/** The tokens of one pass: `prompt`, further tokens of one sequence, or `step`, one token each of many sequences. */
export interface Pass {
  readonly kind: 'prompt' | 'step'
  /** Of each token. */
  readonly positions: readonly number[]
}

/** What all passes of a model share. */
export interface Decoder {
  readonly backend: Backend
  readonly config: ModelConfig
  readonly weights: Weights
}

/** The angles of a pass; `embed` and `project` of it come after. */
export function placeTables({ backend, config }: Decoder, work: Workspace, { kind, positions }: Pass): void {
  const repeat = (times: number) => positions.flatMap((position) => new Array<number>(times).fill(position))
  const put = (buf: Buf, rows: readonly number[]) => {
    const { buffer } = ropeTable(config.rope, rows)
    backend.write(buf, 0, new Uint8Array(buffer))
  }
  // Heads of one token stay together in a step of many, so each has a row of its own.
  const many = kind === 'step' && positions.length > 1
  put(work.queryTable, many ? repeat(config.queryHeads) : positions)
  if (many) put(work.keyTable, repeat(config.kvHeads))
}

/** ids → the residual stream. */
export function embed({ backend, config, weights }: Decoder, work: Workspace, tokens: number): void {
  const { buf: table, dtype } = weights.embedding
  const { vocabulary: rows, hidden: width } = config
  backend.lookup([{ ids: work.ids, tokens, table, dtype, rows, width, output: work.stream }])
}

/**
 * The stream → queries, keys and values of layer `l`: head-major for a prompt; for steps token-major, and the values
 * stay in `work.v`.
 */
export function project(decoder: Decoder, work: Workspace, l: number, { kind, positions }: Pass): void {
  const { backend, config, weights } = decoder
  const { hidden, epsilon, queryHeads, kvHeads, headDim: d } = config
  const layer = weights.layers[l]
  const T = positions.length
  const { stream, normed, q, k, v } = work
  normRows(decoder, stream, T, hidden, layer.attentionNorm!, normed)
  const from = (part: 'q' | 'k' | 'v', heads: number, output: Buf) =>
    matrix(layer, part, { input: normed, tokens: T, inputs: hidden, outputs: heads * d, add: false, output })
  backend.linear([from('q', queryHeads, q), from('k', kvHeads, k), from('v', kvHeads, v)])
  const { qNorm, kNorm } = layer
  if (qNorm && kNorm)
    backend.norm([
      { input: q, rows: T * queryHeads, width: d, weight: qNorm.buf, epsilon, output: q },
      { input: k, rows: T * kvHeads, width: d, weight: kNorm.buf, epsilon, output: k },
    ])
  const { queries, keys, values, queryTable, keyTable } = work
  if (kind === 'prompt') {
    const common = { outer: T, d, tokensAxis: 'outer' as const }
    backend.rope([
      { ...common, input: q, inner: queryHeads, output: queries, table: queryTable },
      { ...common, input: k, inner: kvHeads, output: keys, table: queryTable },
      { ...common, input: v, inner: kvHeads, output: values },
    ])
    return
  }
  const common = { outer: 1, d, tokensAxis: T > 1 ? ('inner' as const) : ('outer' as const) }
  backend.rope([
    { ...common, input: q, inner: T * queryHeads, output: queries, table: queryTable },
    { ...common, input: k, inner: T * kvHeads, output: keys, table: T > 1 ? keyTable : queryTable },
  ])
}

/** What attention gave → the stream after layer `l`. */
export function finish(decoder: Decoder, work: Workspace, l: number, { kind, positions }: Pass): void {
  const { backend, config, weights } = decoder
  const { hidden, inner, queryHeads, headDim: d } = config
  const layer = weights.layers[l]
  const T = positions.length
  const { stream, normed, attended, mixed, gate, up, gated } = work
  if (kind === 'prompt')
    backend.rope([{ input: attended, outer: queryHeads, inner: T, d, output: mixed, tokensAxis: 'inner' }])
  const input = kind === 'prompt' ? mixed : attended
  backend.linear([
    matrix(layer, 'o', { input, tokens: T, inputs: queryHeads * d, outputs: hidden, add: true, output: stream }),
  ])
  normRows(decoder, stream, T, hidden, layer.innerNorm!, normed)
  const wide = { input: normed, tokens: T, inputs: hidden, outputs: inner, add: false }
  backend.linear([matrix(layer, 'gate', { ...wide, output: gate }), matrix(layer, 'up', { ...wide, output: up })])
  backend.gate([{ gate, up, count: T * inner, output: gated }])
  backend.linear([
    matrix(layer, 'down', { input: gated, tokens: T, inputs: inner, outputs: hidden, add: true, output: stream }),
  ])
}

/** The last rows of the stream → logits [rows, V]. */
export function head(decoder: Decoder, work: Workspace, tokens: number, rows: number): void {
  const { backend, config, weights } = decoder
  const { hidden, vocabulary } = config
  const { buf, dtype } = weights.head
  const { stream, last, logits } = work
  if (rows < tokens) backend.copy(stream, (tokens - rows) * hidden * 4, last, 0, rows * hidden * 4)
  normRows(decoder, rows < tokens ? last : stream, rows, hidden, weights.norm, last)
  const common = { weights: buf, dtype, inputs: hidden, outputs: vocabulary, add: false }
  backend.linear([{ ...common, input: last, tokens: rows, output: logits }])
}

function normRows({ backend, config }: Decoder, input: Buf, rows: number, width: number, weight: Weight, output: Buf) {
  backend.norm([{ input, rows, width, weight: weight.buf, epsilon: config.epsilon, output }])
}

function matrix(
  layer: LayerWeights,
  part: 'q' | 'k' | 'v' | 'o' | 'gate' | 'up' | 'down',
  rest: Omit<LinearJob, 'weights' | 'dtype' | 'bias'>,
): LinearJob {
  const { buf, dtype } = layer[part]!
  return { weights: buf, dtype, bias: layer[`${part}Bias`]?.buf, ...rest }
}
