/** Decoders on top of the cache: load a model folder, generate text. */

export type { ChatMessage } from './chat.ts'
export type { ModelConfig } from './config.ts'
export type { Attention, Context, ContextSnapshot } from './context.ts'
export { encodePrompt, type GeneratedToken, type GenerateOptions, generate } from './generate.ts'
export { type ContextOptions, type GenerationDefaults, type LoadOptions, loadModel, type Model } from './model.ts'
export type { Rope } from './rope-scaling.ts'
export { Sampler, type SamplingOptions } from './sampler.ts'
export type { ModelSource } from './source.ts'
export { TextStream } from './text-stream.ts'
export type { Tokenizer } from './tokenizer.ts'
