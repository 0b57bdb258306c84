import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'
import { Bytes } from '../../sdk/bytes.ts'
import { type Rotation, type Summary, summaryParts } from '../../sdk/codec/codec.ts'
import { seededSigns } from '../../sdk/codec/signs.ts'
import { attend } from '../../sdk/kernels/attend.ts'
import { coarseSigns } from '../../sdk/kernels/coarse-signs.ts'
import type { DenseJob } from '../../sdk/kernels/dense.ts'
import { encode } from '../../sdk/kernels/encode.ts'
import { query } from '../../sdk/kernels/query.ts'
import { estimate } from '../../sdk/kernels/rerank.ts'
import { select } from '../../sdk/kernels/select.ts'
import { topk } from '../../sdk/kernels/topk.ts'
import type { Step } from './gpu-chain.ts'
import { DIM, GROUP, HEADS, RECENT, readRow, SINK } from './gpu-data.ts'

const SAMPLE = 64
const CANONICAL = { block: 1, align: 1 } as const

/** Compares a finished step with the reference kernels, for head `h`: throws at the first difference. */
export async function checkStep(backend: WebgpuBackend, step: Step, h: number): Promise<void> {
  const { layer, policy, buffers, candidates } = step
  const read = async (name: keyof Step['buffers'], from: number, bytes: number) =>
    Bytes.of(await backend.read(buffers[name], from, bytes))
  const rotation: Rotation<Bytes> = { d: DIM, D: DIM, signs: Bytes.of(seededSigns(42, DIM)) }

  const queries = await read('queries', 0, HEADS * GROUP * DIM * 4)
  const out = { chosen: new Bytes(HEADS * DIM * 4), y: new Bytes(HEADS * DIM * 4), t: new Bytes(HEADS * DIM) }
  const scales = new Bytes(HEADS * 4)
  query({ queries, heads: HEADS, group: GROUP, choosers: 1, rotation, ...out, scales })
  same('t', out.t.u8, (await read('t', 0, HEADS * DIM)).u8)
  same('y', out.y.u32, (await read('y', 0, HEADS * DIM * 4)).u32)

  // Sampled keys side by side, encoded by the reference.
  const ids = Array.from({ length: SAMPLE }, (_, i) => Math.floor(((i + 0.37) * layer.count) / SAMPLE))
  const rows = new Bytes(SAMPLE * DIM * 4)
  for (const [i, n] of ids.entries()) rows.f32.set(await readRow(backend, layer.keys, h, SINK + n), i * DIM)
  const size = summaryParts(1, SAMPLE, DIM, CANONICAL)
  const host: Summary<Bytes> = {
    cap: SAMPLE,
    D: DIM,
    layout: CANONICAL,
    signs: new Bytes(size.signs),
    magnitudes: new Bytes(size.magnitudes),
    weights: new Bytes(size.weights),
    scales: new Bytes(size.scales),
  }
  const keys = { buf: rows, dtype: 'f32', cap: SAMPLE, d: DIM } as const
  encode({ keys, heads: 1, from: 0, count: SAMPLE, rotation, summary: host, at: 0 })
  let weightSteps = 0
  let magnitudeBits = 0
  for (const [i, n] of ids.entries()) {
    const at = h * layer.summary.cap + n
    same(
      `sign plane of key ${n}`,
      host.signs.u8.subarray(i * 16, i * 16 + 16),
      await backend.read(layer.summary.signs, at * 16, 16),
    )
    const weights = await backend.read(layer.summary.weights, at * 16, 16)
    const magnitudes = await backend.read(layer.summary.magnitudes, at * 48, 48)
    for (let b = 0; b < 16; b++) weightSteps += Math.abs(weights[b] - host.weights.u8[i * 16 + b])
    for (let b = 0; b < 48; b++) magnitudeBits += bitsOf(magnitudes[b] ^ host.magnitudes.u8[i * 48 + b])
  }
  if (weightSteps > 4 || magnitudeBits > 4)
    throw new Error(`codes differ: ${weightSteps} weight steps, ${magnitudeBits} bits`)

  const scores = await read('scores', h * layer.summary.cap * 2, Math.ceil(layer.count / 2) * 4)
  if (policy.coarse === 'signs') {
    const sampled = new Bytes(SAMPLE * 2)
    const t = Bytes.of(out.t.u8.slice(h * DIM, (h + 1) * DIM))
    coarseSigns({
      summary: host,
      heads: 1,
      choosers: 1,
      count: SAMPLE,
      t,
      normWeighted: false,
      scores: sampled,
      stride: SAMPLE,
    })
    same(
      'scores',
      sampled.i16,
      Int16Array.from(ids, (n) => scores.i16[n]),
    )
  }
  const bounds = policy.coarse === 'signs' ? { lo: -15 * DIM, hi: 15 * DIM, step: 2 } : { lo: 0, hi: 96, step: 1 }
  const chosen = new Bytes(candidates * 4)
  select({
    scores,
    stride: 2 * Math.ceil(layer.count / 2),
    heads: 1,
    count: layer.count,
    candidates,
    ids: chosen,
    ...bounds,
  })
  same('candidates', chosen.u32, (await read('ids', h * candidates * 4, candidates * 4)).u32)

  const estimates = await read('estimates', h * candidates * 4, candidates * 4)
  const at = new Map(ids.map((n, i) => [n, i]))
  chosen.u32.forEach((n, c) => {
    const i = at.get(n)
    if (i === undefined) return
    const want = estimate(host, 0, i, out.y.f32, h * DIM) * scales.f32[h]
    const bound =
      1e-4 *
      Math.hypot(...rows.f32.subarray(i * DIM, (i + 1) * DIM)) *
      Math.hypot(...out.chosen.f32.subarray(h * DIM, (h + 1) * DIM))
    if (Math.abs(estimates.f32[c] - want) > bound)
      throw new Error(`estimate of key ${n}: ${estimates.f32[c]}, want ${want}`)
  })
  const top = { topIds: new Bytes(policy.k * 4), topValues: new Bytes(policy.k * 4) }
  topk({ values: estimates, ids: chosen, heads: 1, count: candidates, k: policy.k, ...top })
  same('top ids', top.topIds.u32, (await read('topIds', h * policy.k * 4, policy.k * 4)).u32)
  await checkOutput(backend, step, h, queries, top.topIds)
}

/** Attention of one group over the same positions, rows read one by one. */
async function checkOutput(
  backend: WebgpuBackend,
  step: Step,
  h: number,
  queries: Bytes,
  topIds: Bytes,
): Promise<void> {
  const { layer, policy, buffers } = step
  const end = SINK + layer.count
  const range = (from: number, to: number) => Array.from({ length: to - from }, (_, i) => from + i)
  const positions = [...range(0, SINK), ...Array.from(topIds.u32, (id) => SINK + id), ...range(end, end + RECENT)]
  const cap = positions.length
  const [K, V] = [new Bytes(cap * DIM * 4), new Bytes(cap * DIM * 4)]
  for (const [i, n] of positions.entries()) {
    K.f32.set(await readRow(backend, layer.keys, h, n), i * DIM)
    V.f32.set(await readRow(backend, layer.values, h, n), i * DIM)
  }
  const partials = new Bytes(GROUP * (DIM + 2) * 4)
  attend({
    queries: Bytes.of(queries.u8.slice(h * GROUP * DIM * 4, (h + 1) * GROUP * DIM * 4)),
    keys: { buf: K, dtype: 'f32', cap, d: DIM },
    values: { buf: V, dtype: 'f32', cap, d: DIM },
    heads: 1,
    group: GROUP,
    before: [0, cap],
    after: [cap, cap],
    ids: null,
    k: 0,
    base: 0,
    scale: 1 / Math.sqrt(DIM),
    parts: 1,
    partials,
  })
  const got = Bytes.of(await backend.read(buffers.output, h * GROUP * DIM * 4, GROUP * DIM * 4))
  const lse = Bytes.of(await backend.read(buffers.lse, h * GROUP * 4, GROUP * 4))
  const most = V.f32.reduce((a, v) => Math.max(a, Math.abs(v)), 0)
  for (let g = 0; g < GROUP; g++) {
    const state = partials.f32.subarray(g * (DIM + 2), (g + 1) * (DIM + 2))
    if (Math.abs(state[DIM] + Math.log(state[DIM + 1]) - lse.f32[g]) > 1e-4)
      throw new Error(`lse of query ${g}: ${lse.f32[g]}`)
    for (let j = 0; j < DIM; j++)
      if (Math.abs(state[j] / state[DIM + 1] - got.f32[g * DIM + j]) > 1e-4 * most)
        throw new Error(`output ${g}, ${j}, k ${policy.k}`)
  }
}

function same(what: string, want: ArrayLike<number>, got: ArrayLike<number>): void {
  for (let i = 0; i < want.length; i++)
    if (want[i] !== got[i]) throw new Error(`${what}: entry ${i} is ${got[i]}, the reference has ${want[i]}`)
}

function bitsOf(x: number): number {
  let bits = 0
  for (let rest = x; rest; rest &= rest - 1) bits++
  return bits
}

/** Dense decoding of one head against the reference, all rows read back. */
export async function checkDense(backend: WebgpuBackend, step: Step, parts: number): Promise<void> {
  const { layer, buffers } = step
  const h = HEADS - 1
  const n = layer.count
  const rowBytes = DIM * 2
  const part = async (rows: typeof layer.keys) => ({
    buf: Bytes.of(await backend.read(rows.buf, h * rows.cap * rowBytes, n * rowBytes)),
    dtype: rows.dtype,
    cap: n,
    d: DIM,
  })
  const partials = new Bytes(GROUP * (DIM + 2) * 4)
  const all = { heads: 1, group: GROUP, before: [0, n], after: [n, n], ids: null, k: 0, base: 0, parts: 1 } as const
  const queries = Bytes.of(await backend.read(buffers.queries, h * GROUP * DIM * 4, GROUP * DIM * 4))
  const [keys, values] = [await part(layer.keys), await part(layer.values)]
  attend({ ...all, queries, keys, values, scale: 1 / Math.sqrt(DIM), partials })
  const got = Bytes.of(await backend.read(buffers.output, h * GROUP * DIM * 4, GROUP * DIM * 4)).f32
  for (let g = 0; g < GROUP; g++)
    for (let j = 0; j < DIM; j++) {
      const want = partials.f32[g * (DIM + 2) + j] / partials.f32[g * (DIM + 2) + DIM + 1]
      if (Math.abs(want - got[g * DIM + j]) > 5e-4)
        throw new Error(`dense decode in ${parts} parts: query ${g}, ${j}: ${got[g * DIM + j]}, want ${want}`)
    }
}

/** The first, middle and last token of a prompt, first query head, against the reference. */
export async function checkPrompt(backend: WebgpuBackend, job: DenseJob): Promise<void> {
  const bytes = job.tokens * DIM * 2
  const [keys, values] = await Promise.all(
    [job.keys, job.values].map(async ({ buf, dtype, d }) => {
      return { buf: Bytes.of(await backend.read(buf, 0, bytes)), dtype, cap: job.tokens, d }
    }),
  )
  for (const t of [0, job.tokens >> 1, job.tokens - 1]) {
    const queries = Bytes.of(await backend.read(job.queries, t * DIM * 4, DIM * 4))
    const got = Bytes.of(await backend.read(job.output, t * DIM * 4, DIM * 4)).f32
    const partials = new Bytes((DIM + 2) * 4)
    const range = { before: [0, t + 1], after: [t + 1, t + 1], ids: null, k: 0, base: 0, parts: 1 } as const
    attend({ ...range, queries, keys, values, heads: 1, group: 1, scale: job.scale, partials })
    for (let j = 0; j < DIM; j++) {
      const want = partials.f32[j] / partials.f32[DIM + 1]
      if (Math.abs(want - got[j]) > 5e-4) throw new Error(`prefill, token ${t}, ${j}: ${got[j]}, want ${want}`)
    }
  }
}
