/** Everything of pariskv that names no runtime. Adapters add `createEngine`. */

// Engines and sessions

export type { CallOptions, Progress } from './calls.ts'
export type { Placement, Policy, PolicyOptions, SessionConfig, SessionOptions } from './config.ts'
export { Engine, type EngineInfo, type PassedOver } from './engine.ts'
export type { TensorInput } from './input.ts'
export type { Recall } from './retrieve/audit.ts'
export type { KeysValues } from './session/append.ts'
export type { CheckReport } from './session/check.ts'
export type { MemoryUse } from './session/memory.ts'
export type { GpuAttention, GpuKeysValues, GpuTensor } from './session/record-checks.ts'
export type { RestoreOptions } from './session/restore.ts'
export { Session } from './session/session.ts'
export type { GpuStep, SplitStep } from './session/split-step.ts'
export type { SessionStats } from './session/stats.ts'
export type { AttendResult, RetrieveResult } from './session/steps.ts'

// Rows on the host

export { memoryPages, type OpenPages, type PageTier } from './cache/pages.ts'

// Shapes, zones, element types, errors

export { type Zones, zonesOf } from './cache/zones.ts'
export { bf16ToF32, type Dtype, f16ToF32, f32ToBf16, f32ToF16 } from './dtype.ts'
export { BackendUnavailable, type ErrorCode, type ErrorParts, ParisError } from './errors.ts'
export { type Shape, summaryBytes } from './shape.ts'

// Backends

export type { AllocRequest, Backend, Buf, GpuRecorder, Kernels, LaterRead, ReadPart } from './backend.ts'
export { type Candidate, chooseBackend, type Device } from './backends/choose.ts'
export { createReferenceBackend } from './backends/reference.ts'
export { createWasmBackend, type WasmOptions } from './backends/wasm.ts'
export { createWebgpuBackend, type WebgpuBackend, type WebgpuOptions } from './backends/webgpu.ts'
