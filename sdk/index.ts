/** Everything of pariskv that names no runtime. Adapters add `createEngine`. */

// Backends
export type { AllocRequest, Backend, Buf, Kernels } from './backend.ts'
export { type Candidate, chooseBackend, type Device } from './backends/choose.ts'
export { createReferenceBackend } from './backends/reference.ts'
export { type Zones, zonesOf } from './cache/zones.ts'
export type { CallOptions, Progress } from './calls.ts'
export type { Policy, PolicyOptions, SessionConfig, SessionOptions } from './config.ts'
export type { Dtype } from './dtype.ts'
export { bf16ToF32, f16ToF32, f32ToBf16, f32ToF16 } from './dtype.ts'
// Engines and sessions
export { Engine, type EngineInfo, type PassedOver } from './engine.ts'
export { BackendUnavailable, type ErrorCode, ParisError } from './errors.ts'
// Input, calls, errors
export type { TensorInput } from './input.ts'
export type { Recall } from './retrieve/audit.ts'
export type { KeysValues } from './session/append.ts'
export type { CheckReport } from './session/check.ts'
export type { RestoreOptions } from './session/restore.ts'
export { Session, type SessionStats } from './session/session.ts'
export type { MemoryUse } from './session/state.ts'
export type { AttendResult, RetrieveResult } from './session/steps.ts'
export { type Shape, summaryBytes } from './shape.ts'
