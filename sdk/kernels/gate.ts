import type { Buf, Bytes } from '../bytes.ts'

/** The gate of a feed-forward layer: silu(gate) · up, silu(x) = x / (1 + e^−x). */
export interface GateJob<B extends Buf = Buf> {
  /** [count] f32, finite. */
  readonly gate: B
  /** [count] f32, finite. */
  readonly up: B
  readonly count: number
  /** Out: [count] f32. The gate itself, or memory apart from both. */
  readonly output: B
}

/** Reference in f64. A gate far below zero gives 0, one far above gives gate · up. */
export function gate(job: GateJob<Bytes>): void {
  const [x, up, output] = [job.gate.f32, job.up.f32, job.output.f32]
  for (let i = 0; i < job.count; i++) output[i] = silu(x[i]) * up[i]
}

/** x / (1 + e^−x) in f64. */
export const silu = (x: number) => x / (1 + Math.exp(-x))
