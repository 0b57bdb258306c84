import type { Backend, Buf } from '../../sdk/backend.ts'
import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import type { Engine } from '../../sdk/engine.ts'
import { type ModelConfig, parseModelConfig } from '../../sdk/llm/config.ts'
import { Model } from '../../sdk/llm/model.ts'
import { layerPlan, outerPlan, type WeightSpec } from '../../sdk/llm/weight-plan.ts'
import type { Weights } from '../../sdk/llm/weights.ts'
import { DIM, GROUP, HEADS } from './gpu-data.ts'

/** A Qwen3-8B, or a small one with the same heads. */
export function configOf(small: boolean): ModelConfig {
  return parseModelConfig({
    architectures: ['Qwen3ForCausalLM'],
    hidden_size: small ? 256 : 4096,
    intermediate_size: small ? 768 : 12_288,
    num_hidden_layers: small ? 2 : 36,
    num_attention_heads: HEADS * GROUP,
    num_key_value_heads: HEADS,
    head_dim: DIM,
    vocab_size: small ? 1024 : 151_936,
    rms_norm_eps: 1e-6,
    rope_theta: 1e6,
    max_position_embeddings: 262_144 + 64,
    tie_word_embeddings: false,
  })
}

/** A model with random bf16 weights that never were on the host, and where they lie. */
export async function makeModel(engine: Engine, gpu: WebgpuBackend, config: ModelConfig) {
  const specs = specsOf(config)
  const buffers = await gpu.alloc(requestsOf(specs))
  const random = makeRandom(gpu)
  for (const [i, spec] of specs.entries()) {
    if (spec.shape.length === 1) gpu.write(buffers[i], 0, new Uint8Array(normWeights(spec.shape[0], i).buffer))
    else random(buffers[i], i + 1, spreadOf(spec, config.layers))
  }
  const weights = arrange(config, specs, buffers)
  return { model: new Model(engine, config, undefined, {}, weights), weights }
}

/** The first layers of a model, over the same weights, which stay the other's. */
export function shorten({ engine, config }: Model, weights: Weights, layers: number): Model {
  const fewer = { ...weights, layers: weights.layers.slice(0, layers), buffers: [] }
  return new Model(engine, { ...config, layers }, undefined, {}, fewer)
}

/** The same model on another backend. */
export async function copyModel(engine: Engine, from: Backend, config: ModelConfig, weights: Weights): Promise<Model> {
  const specs = specsOf(config)
  const { backend } = engine
  const buffers = await backend.alloc(requestsOf(specs))
  for (const [i, buf] of weights.buffers.entries()) backend.write(buffers[i], 0, await from.read(buf, 0, buf.bytes))
  return new Model(engine, config, undefined, {}, arrange(config, specs, buffers))
}

function specsOf(config: ModelConfig): WeightSpec[] {
  const { embedding, norm, head } = outerPlan(config)
  const layers = Array.from({ length: config.layers }, (_, l) => layerPlan(config, l).map(([, spec]) => spec))
  return [embedding, norm, head!, ...layers.flat()]
}

function requestsOf(specs: readonly WeightSpec[]) {
  return specs.map(({ name, shape, together }) => {
    const bytes = shape.length === 1 ? shape[0] * 4 : shape[0] * shape[1] * 2
    return { label: name, bytes, together }
  })
}

function arrange(config: ModelConfig, specs: readonly WeightSpec[], buffers: readonly Buf[]): Weights {
  const all = specs.map(({ name, shape }, i) => {
    return [name, { buf: buffers[i], dtype: shape.length === 1 ? ('f32' as const) : ('bf16' as const) }] as const
  })
  const named = new Map(all)
  const [embedding, norm, head] = all.map(([, weight]) => weight)
  const layers = Array.from({ length: config.layers }, (_, l) =>
    Object.fromEntries(layerPlan(config, l).map(([part, { name }]) => [part, named.get(name)!])),
  )
  return { embedding, norm, head, layers, bytes: buffers.reduce((sum, { bytes }) => sum + bytes, 0), buffers }
}

/** So that rows of the embedding have elements of size 1, and what layers add to the stream stays in proportion. */
function spreadOf({ name, shape }: WeightSpec, layers: number): number {
  if (name.includes('embed_tokens')) return Math.sqrt(3)
  const added = name.includes('o_proj') || name.includes('down_proj')
  return Math.sqrt(3 / shape[1] / (added ? 2 * layers : 1))
}

function normWeights(width: number, seed: number): Float32Array {
  return Float32Array.from({ length: width }, (_, i) => 1 + 0.3 * Math.sin(i * 12.9898 + seed * 78.233))
}

/** Uniform bf16 in ± scale, two a word. */
const RANDOM = `
struct P { seed: u32, words: u32, width: u32, scale: f32 }
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@group(0) @binding(1) var<uniform> p: P;
fn brain(h: u32) -> u32 {
  let b = bitcast<u32>((f32(h & 0xffffu) / 32768.0 - 1.0) * p.scale);
  return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
}
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x + id.y * p.width;
  if (i >= p.words) { return; }
  var z = (i ^ (p.seed * 0x9e3779b9u)) + 0x7f4a7c15u;
  z = (z ^ (z >> 16u)) * 0x85ebca6bu;
  z = (z ^ (z >> 13u)) * 0xc2b2ae35u;
  z = z ^ (z >> 16u);
  out[i] = brain(z) | (brain(z >> 16u) << 16u);
}`

function makeRandom({ device, range }: WebgpuBackend) {
  const module = device.createShaderModule({ code: RANDOM })
  const pipeline = device.createComputePipeline({ layout: 'auto', compute: { module } })
  return (buf: Buf, seed: number, scale: number): void => {
    const words = buf.bytes / 4
    const x = Math.min(65_535, Math.ceil(words / 256))
    const uniform = device.createBuffer({ size: 16, usage: 0x40 | 0x08 }) // UNIFORM | COPY_DST
    device.queue.writeBuffer(uniform, 0, new Uint32Array([seed, words, x * 256]))
    device.queue.writeBuffer(uniform, 12, new Float32Array([scale]))
    const entries = [
      { binding: 0, resource: { ...range(buf), size: buf.bytes } },
      { binding: 1, resource: { buffer: uniform } },
    ]
    const encoder = device.createCommandEncoder()
    const pass = encoder.beginComputePass()
    pass.setPipeline(pipeline)
    pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }))
    pass.dispatchWorkgroups(x, Math.ceil(words / 256 / x))
    pass.end()
    device.queue.submit([encoder.finish()])
    uniform.destroy()
  }
}
