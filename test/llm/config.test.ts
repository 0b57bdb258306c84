import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { parseModelConfig } from '../../sdk/llm/config.ts'
import { parseRope, ropeTable } from '../../sdk/llm/rope-scaling.ts'
import { refused } from '../support/sessions.ts'
import { fixturePath, needlePath } from './models.ts'

const jsonOf = (path: string) => JSON.parse(readFileSync(`${path}/config.json`, 'utf8')) as Record<string, unknown>
const llama = jsonOf(fixturePath('llama3-rope-scaled-bf16'))
const needle = jsonOf(needlePath)

describe('config.json', () => {
  it('of Qwen3 with rope_theta', () => {
    const config = parseModelConfig(needle, { eos_token_id: [2, 8] })
    expect(config).toMatchObject({
      family: 'qwen3',
      vocabulary: 512,
      hidden: 384,
      inner: 1024,
      layers: 4,
      queryHeads: 8,
      kvHeads: 2,
      headDim: 128,
      tied: true,
      qkNorm: true,
      biases: { qkv: false, output: false, inner: false },
      bos: 1,
      eos: [2, 8],
    })
    expect(config.rope.theta).toBe(1e6)
  })

  it('of Llama and Qwen2 with rope_parameters', () => {
    expect(parseModelConfig(llama)).toMatchObject({ family: 'llama', headDim: 32, tied: false, qkNorm: false })
    const qwen2 = parseModelConfig(jsonOf(fixturePath('qwen2-bias-f32')))
    expect(qwen2).toMatchObject({ family: 'qwen2', headDim: 16, biases: { qkv: true, output: false }, eos: [2] })
  })

  it('says the same in its older form', () => {
    const { rope_parameters: scaling, ...rest } = llama as { rope_parameters: Record<string, unknown> }
    const { rope_theta, rope_type, ...numbers } = scaling
    const older = { ...rest, rope_theta, rope_scaling: { type: rope_type, ...numbers } }
    expect(parseModelConfig(older)).toEqual(parseModelConfig(llama))
  })

  it.each([
    ['an unknown architecture', { architectures: ['MambaForCausalLM'] }, 'MambaForCausalLM'],
    ['more layers than can be', { num_hidden_layers: 1e9 }, 'num_hidden_layers 1000000000'],
    ['a missing size', { hidden_size: undefined }, 'hidden_size'],
    ['heads that do not divide', { num_key_value_heads: 3 }, '4 query heads on 3 KV heads'],
    ['an odd head', { head_dim: 12 }, 'head_dim 12'],
    ['another activation', { hidden_act: 'gelu' }, 'gelu'],
    ['a sliding window', { use_sliding_window: true }, 'sliding window'],
    ['a layer with a window', { layer_types: ['full_attention', 'sliding_attention'] }, 'sliding window'],
    ['quantized weights', { quantization_config: { bits: 4 } }, 'quantized'],
    ['an unknown rope', { rope_parameters: { rope_type: 'longrope' } }, 'longrope'],
    ['a rope without its factor', { rope_parameters: { rope_type: 'linear' } }, 'rope factor'],
    ['an end beyond the vocabulary', { eos_token_id: 160 }, 'eos_token_id'],
  ])('%s is refused', async (_, fields, told) => {
    const error = await refused(() => parseModelConfig({ ...llama, ...fields }), 'bad_model')
    expect(error.where).toBe('config.json')
    expect(error.got).toContain(told)
  })
})

describe('rope', () => {
  const base = { rope_theta: 10_000 }
  const plain = parseRope(base, 16, 4096).frequencies

  it('linear divides every angle', () => {
    const { frequencies } = parseRope({ ...base, rope_scaling: { type: 'linear', factor: 4 } }, 16, 4096)
    frequencies.forEach((f, j) => expect(f).toBeCloseTo(plain[j] / 4, 15))
  })

  it('llama3 and yarn keep fast pairs and slow the slow ones', () => {
    const llama3 = { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4 }
    const yarn = { rope_type: 'yarn', factor: 8 }
    for (const scaling of [llama3, yarn]) {
      const rope_scaling = { ...scaling, original_max_position_embeddings: 512 }
      const { frequencies, attention } = parseRope({ ...base, rope_scaling }, 16, 4096)
      expect(frequencies[0]).toBe(plain[0])
      expect(frequencies[7]).toBeCloseTo(plain[7] / 8, 12)
      frequencies.forEach((f, j) => expect(f <= plain[j] && f >= plain[j] / 8 - 1e-15).toBe(true))
      expect(attention).toBeCloseTo(scaling === yarn ? 0.1 * Math.log(8) + 1 : 1, 12)
    }
  })

  it('tables hold cosines, then sines, right at a million positions', () => {
    const rope = parseRope(base, 16, 4096)
    const table = ropeTable(rope, [0, 1_000_003])
    expect([...table.subarray(0, 16)]).toEqual([...new Array(8).fill(1), ...new Array(8).fill(0)])
    for (let j = 0; j < 8; j++) {
      expect(table[16 + j]).toBe(Math.fround(Math.cos(1_000_003 * plain[j])))
      expect(table[24 + j]).toBe(Math.fround(Math.sin(1_000_003 * plain[j])))
    }
  })
})
