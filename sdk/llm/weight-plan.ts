import type { Dtype } from '../dtype.ts'
import type { ModelConfig } from './config.ts'
import type { StoredTensors } from './folder.ts'
import { badModel } from './source.ts'

/** One weight of a decoder: its name in the folder and its shape. */
export interface WeightSpec {
  readonly name: string
  readonly shape: readonly number[]
  /** Weights of one name may lie side by side. */
  readonly together: string
}

/** The weights of one decoder layer, by their part in it. */
export type LayerPart =
  | 'attentionNorm'
  | 'q'
  | 'k'
  | 'v'
  | 'qBias'
  | 'kBias'
  | 'vBias'
  | 'qNorm'
  | 'kNorm'
  | 'o'
  | 'oBias'
  | 'innerNorm'
  | 'gate'
  | 'up'
  | 'down'
  | 'gateBias'
  | 'upBias'
  | 'downBias'

type Parts = Partial<Record<LayerPart, readonly [string, readonly number[]]>>

/** Names and shapes of layer `l`. */
export function layerPlan(config: ModelConfig, l: number): [LayerPart, WeightSpec][] {
  const { hidden, inner, queryHeads, kvHeads, headDim: d, biases, qkNorm } = config
  const [wide, narrow] = [queryHeads * d, kvHeads * d]
  const parts: Parts = {
    attentionNorm: ['input_layernorm.weight', [hidden]],
    q: ['self_attn.q_proj.weight', [wide, hidden]],
    k: ['self_attn.k_proj.weight', [narrow, hidden]],
    v: ['self_attn.v_proj.weight', [narrow, hidden]],
    o: ['self_attn.o_proj.weight', [hidden, wide]],
    innerNorm: ['post_attention_layernorm.weight', [hidden]],
    gate: ['mlp.gate_proj.weight', [inner, hidden]],
    up: ['mlp.up_proj.weight', [inner, hidden]],
    down: ['mlp.down_proj.weight', [hidden, inner]],
    ...(qkNorm && { qNorm: ['self_attn.q_norm.weight', [d]], kNorm: ['self_attn.k_norm.weight', [d]] }),
    ...(biases.qkv && {
      qBias: ['self_attn.q_proj.bias', [wide]],
      kBias: ['self_attn.k_proj.bias', [narrow]],
      vBias: ['self_attn.v_proj.bias', [narrow]],
    }),
    ...(biases.output && { oBias: ['self_attn.o_proj.bias', [hidden]] }),
    ...(biases.inner && {
      gateBias: ['mlp.gate_proj.bias', [inner]],
      upBias: ['mlp.up_proj.bias', [inner]],
      downBias: ['mlp.down_proj.bias', [hidden]],
    }),
  }
  return Object.entries(parts).map(([part, [name, shape]]) => {
    const together = `${shape.length === 1 ? 'vectors' : 'weights'} of layer ${l}`
    return [part as LayerPart, { name: `model.layers.${l}.${name}`, shape, together }]
  })
}

/** Names and shapes of what stands before and after the layers; `head` is absent where it is tied. */
export function outerPlan({ vocabulary, hidden, tied }: ModelConfig) {
  const spec = (name: string, shape: readonly number[]): WeightSpec => ({ name, shape, together: name })
  return {
    embedding: spec('model.embed_tokens.weight', [vocabulary, hidden]),
    norm: spec('model.norm.weight', [hidden]),
    head: tied ? undefined : spec('lm_head.weight', [vocabulary, hidden]),
  }
}

const DTYPES: Partial<Record<string, Dtype>> = { F32: 'f32', F16: 'f16', BF16: 'bf16' }

/**
 * The stored tensor of a weight and its dtype.
 * @throws ParisError `bad_model` where it is absent, of another shape than config.json says, or no float
 */
export function findWeight({ listing, tensors }: StoredTensors, { name, shape }: WeightSpec) {
  const tensor = tensors.get(name)
  if (!tensor) {
    const fix = 'Take the folder from its source again; every shard belongs to it.'
    throw badModel(listing, `no tensor ${name}`, `one of shape [${shape}]`, fix)
  }
  const { file } = tensor
  if (tensor.shape.join() !== shape.join())
    throw badModel(
      file,
      `${name} of shape [${tensor.shape}]`,
      `[${shape}], as config.json says`,
      'Take config.json and the weights of one model.',
    )
  const dtype = DTYPES[tensor.dtype]
  if (!dtype) throw badModel(file, `${name} of dtype ${tensor.dtype}`, 'BF16, F16 or F32', 'Take unquantized weights.')
  return { tensor, dtype }
}
