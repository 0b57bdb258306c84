import type { Backend, Buf } from '../backend.ts'
import { FUSED_TOKENS, type LinearJob } from '../kernels/linear.ts'
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
  const rows = ropeTable(config.rope, positions)
  const put = (buf: Buf, { buffer }: Float32Array<ArrayBuffer>) => backend.write(buf, 0, new Uint8Array(buffer))
  // Heads of one token stay together in a step of many, so each has a row of its own.
  const many = kind === 'step' && positions.length > 1
  put(work.queryTable, many ? repeatRows(rows, config.headDim, config.queryHeads) : rows)
  if (many) put(work.keyTable, repeatRows(rows, config.headDim, config.kvHeads))
}

function repeatRows(rows: Float32Array, d: number, times: number): Float32Array<ArrayBuffer> {
  const out = new Float32Array(rows.length * times)
  for (let at = 0; at < out.length; at += d) {
    const row = Math.floor(at / d / times)
    out.set(rows.subarray(row * d, (row + 1) * d), at)
  }
  return out
}

/** ids → the residual stream. */
export function embed({ backend, config, weights }: Decoder, work: Workspace, tokens: number): void {
  const { buf: table, dtype } = weights.embedding
  const { vocabulary: rows, hidden: width } = config
  backend.lookup([{ ids: work.ids, tokens, table, dtype, rows, width, output: work.stream }])
}

/** The stream → queries, keys and values of layer `l`: head-major for a prompt, token-major for steps. */
export function project(decoder: Decoder, work: Workspace, l: number, { kind, positions }: Pass): void {
  const { backend, config, weights } = decoder
  const { hidden, epsilon, queryHeads, kvHeads, headDim: d } = config
  const layer = weights.layers[l]
  const T = positions.length
  const { q, k, v, queries, keys, values, queryTable, keyTable } = work
  const normed = normedStream(decoder, work, T, layer.attentionNorm!)
  const from = (part: 'q' | 'k' | 'v', heads: number, output: Buf) =>
    matrix(layer, part, { ...normed, tokens: T, inputs: hidden, outputs: heads * d, add: false, output })
  backend.linear([from('q', queryHeads, q), from('k', kvHeads, k), from('v', kvHeads, v)])
  const many = kind === 'step' && T > 1
  const turned = (heads: number, weight?: Weight) => ({
    ...(many
      ? { outer: 1, inner: T * heads, tokensAxis: 'inner' as const }
      : { outer: T, inner: heads, tokensAxis: 'outer' as const }),
    d,
    norm: weight && { weight: weight.buf, epsilon },
  })
  backend.rope([
    { ...turned(queryHeads, layer.qNorm), input: q, output: queries, table: queryTable },
    { ...turned(kvHeads, layer.kNorm), input: k, output: keys, table: many ? keyTable : queryTable },
    { ...turned(kvHeads), input: v, output: values },
  ])
}

/** What attention gave → the stream after layer `l`. */
export function finish(decoder: Decoder, work: Workspace, l: number, { kind, positions }: Pass): void {
  const { backend, config, weights } = decoder
  const { hidden, inner, queryHeads, headDim: d } = config
  const layer = weights.layers[l]
  const T = positions.length
  const { stream, attended, mixed, gate, up, gated } = work
  const headMajor = kind === 'prompt' && T > 1
  if (headMajor) backend.rope([{ input: attended, outer: queryHeads, inner: T, d, output: mixed, tokensAxis: 'inner' }])
  const input = headMajor ? mixed : attended
  backend.linear([
    matrix(layer, 'o', { input, tokens: T, inputs: queryHeads * d, outputs: hidden, add: true, output: stream }),
  ])
  const normed = normedStream(decoder, work, T, layer.innerNorm!)
  const wide = { ...normed, tokens: T, inputs: hidden, outputs: inner, add: false }
  if (T <= FUSED_TOKENS && isPlain(layer))
    backend.linear([matrix(layer, 'gate', { ...wide, gated: layer.up!.buf, output: gated })])
  else {
    backend.linear([matrix(layer, 'gate', { ...wide, output: gate }), matrix(layer, 'up', { ...wide, output: up })])
    backend.gate([{ gate, up, count: T * inner, output: gated }])
  }
  backend.linear([
    matrix(layer, 'down', { input: gated, tokens: T, inputs: inner, outputs: hidden, add: true, output: stream }),
  ])
}

/** Whether gate and up can be one job. */
function isPlain({ gate, up, gateBias, upBias }: LayerWeights): boolean {
  return gate!.dtype === up!.dtype && !gateBias && !upBias
}

/** The normalized stream as the input of matrices, which normalize it themselves for few tokens. */
function normedStream(
  decoder: Decoder,
  { stream, normed }: Workspace,
  tokens: number,
  weight: Weight,
): Pick<LinearJob, 'input' | 'norm'> {
  const { epsilon, hidden } = decoder.config
  if (tokens <= FUSED_TOKENS) return { input: stream, norm: { weight: weight.buf, epsilon } }
  normRows(decoder, stream, tokens, hidden, weight, normed)
  return { input: normed }
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
