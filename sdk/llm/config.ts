import { describe } from '../errors.ts'
import { parseRope, type Rope } from './rope-scaling.ts'
import { badModel } from './source.ts'

/** Architectures that are known, by `model_type`. */
const FAMILIES = { llama: 'LlamaForCausalLM', qwen2: 'Qwen2ForCausalLM', qwen3: 'Qwen3ForCausalLM' } as const

/** A decoder as config.json describes it. */
export interface ModelConfig {
  readonly family: keyof typeof FAMILIES
  readonly vocabulary: number
  readonly hidden: number
  /** Width of the feed-forward layer. */
  readonly inner: number
  readonly layers: number
  readonly queryHeads: number
  readonly kvHeads: number
  readonly headDim: number
  readonly epsilon: number
  readonly rope: Rope
  /** Positions that the model was made for; more are possible, at a loss. */
  readonly maxPositions: number
  /** The embedding is the output matrix as well. */
  readonly tied: boolean
  readonly qkNorm: boolean
  readonly biases: { readonly qkv: boolean; readonly output: boolean; readonly inner: boolean }
  /** Begins a text, for who makes ids without the tokenizer: that one puts it before every text by itself. */
  readonly bos: number | undefined
  /** Tokens that end a text. */
  readonly eos: readonly number[]
}

type Json = Readonly<Record<string, unknown>>
const FILE = 'config.json'

/**
 * Checks config.json and fills in what older files leave out.
 * @param config config.json
 * @param generation generation_config.json, whose end tokens win
 * @throws ParisError `bad_model` naming the field: an unknown architecture, sizes that do not fit one another, or a part
 * that is not supported (sliding windows, quantized weights, activations other than silu)
 */
export function parseModelConfig(config: Json, generation: Json = {}): ModelConfig {
  const family = familyOf(config)
  const hidden = whole(config, 'hidden_size', 8)
  if (hidden > 16_384) throw wrong(`hidden_size ${hidden}`, 'at most 16384')
  const queryHeads = whole(config, 'num_attention_heads')
  const kvHeads = config.num_key_value_heads == null ? queryHeads : whole(config, 'num_key_value_heads')
  const headDim = config.head_dim == null ? hidden / queryHeads : whole(config, 'head_dim')
  const inner = whole(config, 'intermediate_size', 8)
  if (queryHeads % kvHeads !== 0)
    throw wrong(`${queryHeads} query heads on ${kvHeads} KV heads`, 'a whole number of query heads a KV head')
  if (headDim % 8 !== 0 || headDim > 256) throw wrong(`head_dim ${headDim}`, 'a multiple of 8 from 8 to 256')
  const layers = whole(config, 'num_hidden_layers')
  if (layers > 1024) throw wrong(`num_hidden_layers ${layers}`, 'at most 1024')
  if (inner * hidden * layers > Number.MAX_SAFE_INTEGER) throw wrong('sizes', 'smaller ones')
  refuseUnsupported(config)
  const maxPositions = config.max_position_embeddings == null ? 2048 : whole(config, 'max_position_embeddings')
  const attentionBias = flag(config, 'attention_bias', false)
  const vocabulary = whole(config, 'vocab_size')
  return {
    family,
    vocabulary,
    hidden,
    inner,
    layers,
    queryHeads,
    kvHeads,
    headDim,
    epsilon: epsilonOf(config),
    rope: parseRope(config, headDim, maxPositions),
    maxPositions,
    tied: flag(config, 'tie_word_embeddings', false),
    qkNorm: family === 'qwen3',
    biases: {
      qkv: family === 'qwen2' || attentionBias,
      output: family !== 'qwen2' && attentionBias,
      inner: flag(config, 'mlp_bias', false),
    },
    bos: tokens(generation.bos_token_id ?? config.bos_token_id, 'bos_token_id', vocabulary)[0],
    eos: tokens(generation.eos_token_id ?? config.eos_token_id, 'eos_token_id', vocabulary),
  }
}

function familyOf(config: Json): ModelConfig['family'] {
  const type = config.model_type
  const named = Array.isArray(config.architectures) ? (config.architectures[0] as unknown) : undefined
  for (const [family, architecture] of Object.entries(FAMILIES))
    if (named === undefined ? type === family : named === architecture) return family as ModelConfig['family']
  const got = `architecture ${describe(named ?? type)}`
  throw badModel(FILE, got, Object.values(FAMILIES).join(', '), 'Take a model of one of these architectures.')
}

function refuseUnsupported(config: Json): void {
  const act = config.hidden_act ?? 'silu'
  if (act !== 'silu') throw unsupported(`hidden_act ${describe(act)}`, 'silu')
  if (config.quantization_config != null) throw unsupported('quantized weights', 'bf16, f16 or f32 weights')
  const types = Array.isArray(config.layer_types) ? config.layer_types : []
  if (config.use_sliding_window === true || types.some((type) => type !== 'full_attention'))
    throw unsupported('layers with a sliding window', 'full attention in every layer')
}

function epsilonOf({ rms_norm_eps: value = 1e-6 }: Json): number {
  if (typeof value === 'number' && value >= 0 && value < 1) return value
  throw wrong(`rms_norm_eps ${describe(value)}`, 'a number from 0 to 1')
}

function whole(config: Json, name: string, multiple = 1): number {
  const value = config[name]
  if (typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 2 ** 31 && value % multiple === 0)
    return value
  throw wrong(`${name} ${describe(value)}`, multiple === 1 ? 'a whole number above 0' : `a multiple of ${multiple}`)
}

function flag(config: Json, name: string, otherwise: boolean): boolean {
  const value = config[name] ?? otherwise
  if (typeof value === 'boolean') return value
  throw wrong(`${name} ${describe(value)}`, 'true or false')
}

function tokens(value: unknown, name: string, vocabulary: number): number[] {
  const ids = value == null ? [] : Array.isArray(value) ? value : [value]
  for (const id of ids)
    if (!Number.isInteger(id) || id < 0 || id >= vocabulary)
      throw wrong(`${name} ${describe(id)}`, `token ids below ${vocabulary}`)
  return ids as number[]
}

function wrong(got: string, want: string) {
  return badModel(FILE, got, want, 'Take config.json from its source again.')
}

function unsupported(got: string, want: string) {
  return badModel(FILE, got, want, 'Take another model: this part of it is not supported.')
}
