import type { Buf } from '../../sdk/backend.ts'
import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import { f32View } from '../../sdk/bytes.ts'
import { bf16ToF32, f32ToBf16 } from '../../sdk/dtype.ts'
import { silu } from '../../sdk/kernels/gate.ts'
import type { LinearJob } from '../../sdk/kernels/linear.ts'
import { rmsFactor } from '../../sdk/kernels/norm.ts'

/** Matrices of one call of `linear`, all over the same inputs. */
export interface Matrices {
  readonly name: string
  readonly inputs: number
  readonly outputs: readonly number[]
  /** With the norm of the input inside. */
  readonly normed?: boolean
  /** Two matrices as one job: silu of the first times the second. */
  readonly gated?: boolean
}

/** A Qwen3-8B, every width divided by `by`. */
export function shapesOf(by: number): readonly Matrices[] {
  const [hidden, ffn, kv, vocab] = [4096, 12_288, 1024, 151_936].map((n) => Math.ceil(n / by / 8) * 8)
  return [
    { name: 'q, k, v', inputs: hidden, outputs: [hidden, kv, kv] },
    { name: 'q', inputs: hidden, outputs: [hidden] },
    { name: 'k', inputs: hidden, outputs: [kv] },
    { name: 'o', inputs: hidden, outputs: [hidden] },
    { name: 'gate, up', inputs: hidden, outputs: [ffn, ffn] },
    { name: 'down', inputs: ffn, outputs: [hidden] },
    { name: 'vocabulary', inputs: hidden, outputs: [vocab] },
  ]
}

/** The same calls as a decode step of up to 8 tokens makes them. */
export function fusedShapes(shapes: readonly Matrices[]): readonly Matrices[] {
  return shapes.flatMap((shape) => {
    if (shape.name === 'q, k, v') return [{ ...shape, name: 'norm q, k, v', normed: true }]
    return shape.name === 'gate, up' ? [{ ...shape, name: 'norm gate · up', normed: true, gated: true }] : []
  })
}

/** Elements of the random numbers that fill a matrix again and again: no whole number of rows. */
const PATTERN = (1 << 22) - 2

/** One buffer of random bf16 numbers to copy matrices from. */
export async function makePattern(backend: WebgpuBackend): Promise<Buf> {
  const [pattern] = await backend.alloc([{ label: 'pattern', bytes: PATTERN * 2 }])
  let state = 1
  const values = Uint16Array.from({ length: PATTERN }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return f32ToBf16((state / 2 ** 31 - 1) * 0.05)
  })
  backend.write(pattern, 0, new Uint8Array(values.buffer))
  return pattern
}

/** The jobs of `copies` calls over matrices of their own, so that no call finds its weights in a cache. */
export async function makeCalls(
  backend: WebgpuBackend,
  pattern: Buf,
  { inputs, outputs, normed, gated }: Matrices,
  tokens: number,
  copies: number,
): Promise<{ calls: LinearJob[][]; all: Buf[] }> {
  const calls: LinearJob[][] = []
  const activations = [
    { label: 'input', bytes: tokens * inputs * 4 },
    ...outputs.map((m) => ({ label: 'output', bytes: tokens * m * 4, together: 'outputs' })),
  ]
  const [input, ...output] = await backend.alloc(activations)
  const [weight] = await backend.alloc([{ label: 'norm', bytes: inputs * 4 }])
  backend.write(weight, 0, new Uint8Array(Float32Array.from({ length: inputs }, (_, i) => 1 + (i % 7) / 9).buffer))
  const x = Float32Array.from({ length: tokens * inputs }, (_, i) => Math.sin(i * 12.9898) * 1.5)
  backend.write(input, 0, new Uint8Array(x.buffer))
  const all = [input, weight, ...output]
  for (let i = 0; i < copies; i++) {
    const together = `weights ${i}`
    const weights = await backend.alloc(outputs.map((m) => ({ label: 'weights', bytes: m * inputs * 2, together })))
    all.push(...weights)
    for (const buf of weights)
      for (let at = 0; at < buf.bytes; at += PATTERN * 2)
        backend.copy(pattern, 0, buf, at, Math.min(PATTERN * 2, buf.bytes - at))
    const norm = normed ? { norm: { weight, epsilon: 1e-6 } } : {}
    const common = { input, tokens, dtype: 'bf16' as const, inputs, add: false, ...norm }
    const jobs = outputs.map((m, j) => ({ ...common, weights: weights[j], outputs: m, output: output[j] }))
    calls.push(gated ? [{ ...jobs[0], gated: weights[1] }] : jobs)
  }
  backend.flush()
  return { calls, all }
}

/** Compares rows and tokens spread over a finished job with sums in f64: throws at the first that is off. */
export async function checkLinear(backend: WebgpuBackend, job: LinearJob): Promise<void> {
  const { tokens, inputs, outputs, gated } = job
  const x = f32View(await backend.read(job.input, 0, tokens * inputs * 4))
  if (job.norm) normalize(x, f32View(await backend.read(job.norm.weight, 0, inputs * 4)), job.norm.epsilon)
  const y = f32View(await backend.read(job.output, 0, tokens * outputs * 4))
  for (let i = 0; i < 16; i++) {
    const row = i === 15 ? outputs - 1 : Math.floor((i * outputs) / 15.1)
    const w = await readRow(backend, job.weights, row, inputs)
    const u = gated && (await readRow(backend, gated, row, inputs))
    for (let t = 0; t < tokens; t += Math.max(1, Math.floor(tokens / 7))) {
      const token = x.subarray(t * inputs, (t + 1) * inputs)
      let [want, size] = innerOf(token, w)
      if (u) {
        const [up, upSize] = innerOf(token, u)
        size = 1.1 * size * Math.abs(up) + Math.abs(silu(want)) * upSize
        want = silu(want) * up
      }
      const got = y[t * outputs + row]
      if (!(Math.abs(got - want) <= 1e-5 * size))
        throw new Error(`token ${t}, output ${row} of ${outputs}: got ${got}, want ${want}, sizes ${size}`)
    }
  }
}

/** Each row of x, in place. */
function normalize(x: Float32Array, weight: Float32Array, epsilon: number): void {
  for (let at = 0; at < x.length; at += weight.length) {
    const factor = rmsFactor(x, at, weight.length, epsilon)
    for (let j = 0; j < weight.length; j++) x[at + j] *= factor * weight[j]
  }
}

async function readRow(backend: WebgpuBackend, matrix: Buf, row: number, inputs: number): Promise<Float32Array> {
  const raw = await backend.read(matrix, row * inputs * 2, inputs * 2)
  return Float32Array.from(new Uint16Array(raw.buffer, raw.byteOffset, inputs), bf16ToF32)
}

/** Σ x · w and Σ |x · w|. */
function innerOf(x: Float32Array, w: Float32Array): [number, number] {
  let [sum, size] = [0, 0]
  for (let j = 0; j < w.length; j++) {
    sum += x[j] * w[j]
    size += Math.abs(x[j] * w[j])
  }
  return [sum, size]
}
