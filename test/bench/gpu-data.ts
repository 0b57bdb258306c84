import type { Buf } from '../../sdk/backend.ts'
import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import type { GpuBuf } from '../../sdk/backends/webgpu-memory.ts'
import { makeRotation, type Rotation, type Rows, type Summary, summaryParts } from '../../sdk/codec/codec.ts'
import { seededSigns } from '../../sdk/codec/signs.ts'
import { bf16ToF32, type Dtype } from '../../sdk/dtype.ts'

/** The published setting: 8 KV heads, 32 query heads, d = 128. */
export const HEADS = 8
export const GROUP = 4
export const DIM = 128
export const SINK = 64
/** Local tokens and half a full buffer. */
export const RECENT = 256 + 128

/** One layer of one sequence, filled on the device: N keys in the retrieval zone between sink and recent tokens. */
export interface Layer {
  readonly count: number
  readonly keys: Rows
  readonly values: Rows
  readonly summary: Summary
  readonly all: readonly Buf[]
}

export interface LayerOptions {
  readonly count: number
  readonly seed: number
  readonly dtype?: Dtype
  readonly counts?: boolean
}

/** Allocates several layers in one call, so that a batch's jobs can share dispatches, and fills and encodes them. */
export async function makeLayers(backend: WebgpuBackend, rotation: Rotation, options: readonly LayerOptions[]) {
  const requests = options.flatMap(({ count, dtype = 'bf16', counts }) => {
    const cap = Math.ceil((SINK + count + RECENT) / 16) * 16
    const zone = Math.ceil(count / 16) * 16
    const size = summaryParts(HEADS, zone, DIM, backend.layout)
    const rows = HEADS * cap * DIM * (dtype === 'f32' ? 4 : 2)
    const names = ['signs', 'magnitudes', 'weights', 'scales'] as const
    return [
      { label: 'keys', bytes: rows, together: 'keys' },
      { label: 'values', bytes: rows, together: 'values' },
      ...names.map((name) => ({ label: name, bytes: size[name], together: name })),
      { label: 'counts', bytes: counts ? size.counts : 4, together: 'counts' },
    ]
  })
  const buffers = await backend.alloc(requests)
  const layers = options.map(({ count, dtype = 'bf16', counts: counted }, i): Layer => {
    const all = buffers.slice(7 * i, 7 * i + 7)
    const [keys, values, signs, magnitudes, weights, scales, counts] = all
    const cap = Math.ceil((SINK + count + RECENT) / 16) * 16
    const zone = Math.ceil(count / 16) * 16
    const parts = { signs, magnitudes, weights, scales, ...(counted ? { counts } : {}) }
    return {
      count,
      keys: { buf: keys, dtype, cap, d: DIM },
      values: { buf: values, dtype, cap, d: DIM },
      summary: { cap: zone, D: DIM, layout: backend.layout, ...parts },
      all,
    }
  })
  layers.forEach((layer, i) => {
    fill(backend, layer.keys, options[i].seed, 0)
    fill(backend, layer.values, options[i].seed, 1)
  })
  backend.encode(layers.map((layer) => encodeJob(layer, rotation)))
  backend.flush()
  return layers
}

export function encodeJob({ keys, summary, count }: Layer, rotation: Rotation) {
  return { keys, heads: HEADS, from: SINK, count, rotation, summary, at: 0 }
}

export async function makeSigns(backend: WebgpuBackend): Promise<Rotation> {
  const [buf] = await backend.alloc([{ label: 'signs', bytes: DIM }])
  backend.write(buf, 0, new Uint8Array(seededSigns(42, DIM).buffer))
  return makeRotation(DIM, buf)
}

/** [Hq, d]: each group looks for a stored key of its head, its four queries with noise of their own. */
export async function makeQueries(backend: WebgpuBackend, layer: Layer, seed: number): Promise<Float32Array> {
  const queries = new Float32Array(HEADS * GROUP * DIM)
  let state = seed
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return (state + 0.5) / 2 ** 32
  }
  for (let h = 0; h < HEADS; h++) {
    const n = SINK + Math.floor(next() * layer.count)
    const row = await readRow(backend, layer.keys, h, n)
    for (let g = 0; g < GROUP; g++)
      for (let j = 0; j < DIM; j++) {
        const noise = Math.sqrt(-2 * Math.log(next())) * Math.cos(2 * Math.PI * next())
        queries[(h * GROUP + g) * DIM + j] = Math.fround(row[j] + 0.5 * noise)
      }
  }
  return queries
}

/** One stored row as f32. */
export async function readRow(backend: WebgpuBackend, rows: Rows, h: number, n: number): Promise<Float32Array> {
  const size = rows.dtype === 'f32' ? 4 : 2
  const raw = await backend.read(rows.buf, (h * rows.cap + n) * rows.d * size, rows.d * size)
  if (rows.dtype === 'f32') return new Float32Array(raw.buffer)
  return Float32Array.from(new Uint16Array(raw.buffer), bf16ToF32)
}

/** Clustered rows: a mean common to a head, 64 clusters, noise, lengths that differ by a quarter. */
const FILL = `
struct P { seed: u32, head: u32, d: u32, value: u32, wide: u32, total: u32, width: u32, pad: u32 }
@group(0) @binding(0) var<storage, read_write> rows: array<u32>;
@group(0) @binding(1) var<uniform> p: P;
fn mix(a: u32, b: u32) -> u32 {
  var z = (a ^ (b * 0x9e3779b9u)) + 0x7f4a7c15u;
  z = (z ^ (z >> 16u)) * 0x85ebca6bu;
  z = (z ^ (z >> 13u)) * 0xc2b2ae35u;
  return z ^ (z >> 16u);
}
fn unit(x: u32) -> f32 { return (f32(x >> 8u) + 0.5) / 16777216.0; }
fn gauss(s: u32) -> f32 { return sqrt(-2.0 * log(unit(s))) * cos(6.2831853 * unit(mix(s, 77u))); }
fn value(n: u32, j: u32) -> f32 {
  let own = gauss(mix(mix(mix(p.seed, 3u + p.value), p.head), n * p.d + j));
  if (p.value == 1u) { return own; }
  let cluster = mix(mix(p.seed, 4u), n / 64u) % 64u;
  let mean = gauss(mix(mix(mix(p.seed, 1u), p.head), j));
  let center = gauss(mix(mix(mix(p.seed, 2u), p.head), cluster * p.d + j));
  return (0.6 * mean + 0.8 * center + 0.7 * own) * exp2(0.3 * unit(mix(mix(p.seed, 5u), n)) - 0.15);
}
fn brain(v: f32) -> u32 { let b = bitcast<u32>(v); return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u; }
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x + id.y * p.width;
  if (i >= p.total) { return; }
  let pairs = p.d / 2u;
  let a = value(i / pairs, 2u * (i % pairs));
  let b = value(i / pairs, 2u * (i % pairs) + 1u);
  if (p.wide == 1u) {
    rows[2u * i] = bitcast<u32>(a);
    rows[2u * i + 1u] = bitcast<u32>(b);
  } else { rows[i] = brain(a) | (brain(b) << 16u); }
}`

const pipelines = new WeakMap<GPUDevice, GPUComputePipeline>()

function fill(backend: WebgpuBackend, rows: Rows, seed: number, value: number): void {
  const { device } = backend
  const buf = rows.buf as GpuBuf
  const known = pipelines.get(device)
  const pipeline =
    known ??
    device.createComputePipeline({ layout: 'auto', compute: { module: device.createShaderModule({ code: FILL }) } })
  pipelines.set(device, pipeline)
  backend.flush()
  const size = rows.cap * rows.d * (rows.dtype === 'f32' ? 4 : 2)
  const total = (rows.cap * rows.d) / 2
  const x = Math.min(65535, Math.ceil(total / 256))
  for (let h = 0; h < HEADS; h++) {
    const uniform = device.createBuffer({ size: 32, usage: 0x40 | 0x08 })
    const words = [seed, h, rows.d, value, rows.dtype === 'f32' ? 1 : 0, total, x * 256, 0]
    device.queue.writeBuffer(uniform, 0, new Uint32Array(words))
    const entries = [
      { binding: 0, resource: { buffer: buf.gpu, offset: buf.offset + h * size, size } },
      { binding: 1, resource: { buffer: uniform } },
    ]
    const encoder = device.createCommandEncoder()
    const pass = encoder.beginComputePass()
    pass.setPipeline(pipeline)
    pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }))
    pass.dispatchWorkgroups(x, Math.ceil(total / 256 / x))
    pass.end()
    device.queue.submit([encoder.finish()])
    uniform.destroy()
  }
}
