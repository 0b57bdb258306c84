import { afterAll, describe, expect, it } from 'vitest'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import type { WebgpuOptions } from '../../sdk/backends/webgpu.ts'
import { Bytes } from '../../sdk/bytes.ts'
import type { Summary } from '../../sdk/codec/codec.ts'
import type { PolicyOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { shareWebgpu } from '../support/gpu.ts'
import { gaussians, random } from '../support/inputs.ts'
import { emptySummary, type HostJobs, oracle, runOne } from '../support/jobs.ts'
import { expectSame } from '../support/repeat.ts'
import { expectSameState, feed, options, queriesAt, refused, rows, sequence, tokensOf } from '../support/sessions.ts'

const engines: Engine[] = []
afterAll(async () => {
  for (const engine of engines) await engine.dispose()
})
function engineOn(backend: ConstructorParameters<typeof Engine>[0]): Engine {
  const engine = new Engine(backend)
  engines.push(engine)
  return engine
}
const open = async (limits?: WebgpuOptions) => engineOn(await shareWebgpu(limits))

const HEADS = 2
const d = 64

/** A summary of random codes: any bytes are codes. */
function randomSummary(count: number, seed: number): Summary<Bytes> {
  const next = random(seed)
  const s = emptySummary(HEADS, count, d, { norms: true, counts: true })
  for (const part of [s.signs, s.magnitudes, s.weights, s.norms!])
    for (let i = 0; i < part.bytes; i++) part.u8[i] = Math.floor(next() * 256)
  for (let i = 0; i < HEADS * s.cap; i++) s.scales.u16[i] = 0x3c00 + Math.floor(next() * 128)
  for (let h = 0; h < HEADS; h++)
    for (let n = 0; n < count; n++)
      for (let b = 0; b < d / 8; b++)
        s.counts!.u32[(h * (d / 8) + b) * 256 + s.signs.u8[(h * s.cap + n) * (d / 8) + b]]++
  return s
}

describe('a head wider than one binding', () => {
  const COUNT = 12_000
  const limits = { maxBinding: 18_000 }
  const summary = randomSummary(COUNT, 1)
  const next = random(2)
  const t = Bytes.of(Int8Array.from({ length: HEADS * d }, () => Math.floor(next() * 31) - 15))
  const y = Bytes.of(gaussians(next, HEADS * d))
  const scores = () => new Bytes(HEADS * summary.cap * 2)
  const common = { summary, heads: HEADS, choosers: 1, count: COUNT, stride: summary.cap, t }
  const perHead = (bytes: Bytes, size: number, used: number) =>
    [0, 1].map((h) => bytes.u8.slice(h * size, h * size + used))

  for (const normWeighted of [false, true])
    it(`is scored and selected from to the bit, signs${normWeighted ? ' with norms' : ''}`, async () => {
      const backend = await shareWebgpu(limits)
      const job: HostJobs['coarseSigns'] = { ...common, normWeighted, scores: scores() }
      const want = oracle('coarseSigns', job)
      const got = await runOne(backend, 'coarseSigns', job)
      const size = summary.cap * 2
      expect(perHead(got.scores, size, COUNT * 2)).toEqual(perHead(want.scores, size, COUNT * 2))
      const bounds = { lo: -15 * d, hi: 15 * d, step: normWeighted ? (1 as const) : (2 as const) }
      const chosen = { heads: HEADS, count: COUNT, stride: summary.cap, candidates: 700, ids: new Bytes(HEADS * 2800) }
      const select = { ...chosen, ...bounds, scores: want.scores }
      expect((await runOne(backend, 'select', select)).ids.u32).toEqual(oracle('select', select).ids.u32)
      backend.dispose()
    })

  it('is scored to the bit by collisions', async () => {
    const backend = await shareWebgpu(limits)
    const job = { ...common, normWeighted: false, y, rho: 0.2, scores: scores() }
    const [got, want] = [await runOne(backend, 'coarseCollision', job), oracle('coarseCollision', job)]
    expect(perHead(got.scores, summary.cap * 2, COUNT * 2)).toEqual(perHead(want.scores, summary.cap * 2, COUNT * 2))
    backend.dispose()
  })

  it('is reranked by codes and by rows, for ids scattered over the segments', async () => {
    const backend = await shareWebgpu(limits)
    const ids = Bytes.of(Uint32Array.from({ length: HEADS * 500 }, () => Math.floor(next() * COUNT)))
    const keys = { buf: Bytes.of(gaussians(next, HEADS * 1000 * d)), dtype: 'f32' as const, cap: 1000, d }
    const near = Bytes.of(ids.u32.map((id) => id % 990))
    const sources = [
      [{ codes: summary, y, scales: Bytes.of(new Float32Array([1, 0.5])) }, ids],
      [{ rows: keys, base: 7, chosen: y, scale: 1 }, near],
    ] as const
    for (const [source, listed] of sources)
      for (const of of [listed, null]) {
        const job = { source, heads: HEADS, choosers: 1, ids: of, count: 500, estimates: new Bytes(HEADS * 2000) }
        const [got, want] = [await runOne(backend, 'rerank', job), oracle('rerank', job)]
        const whole = await shareWebgpu()
        expectSame(got.estimates.u8, (await runOne(whole, 'rerank', job)).estimates.u8, 'split and whole')
        whole.dispose()
        got.estimates.f32.forEach((v, i) => {
          expect(Math.abs(v - want.estimates.f32[i])).toBeLessThan(1e-3)
        })
      }
    backend.dispose()
  })

  const policies: [string, PolicyOptions][] = [
    ['signs with norms', { normWeighted: true }],
    ['collision, groups by maximum', { coarse: 'collision', group: 'max' }],
  ]
  for (const [name, policy] of policies)
    it(`serves a whole session: ${name}`, async () => {
      const n = 2600
      const shape = { capacity: n, store: 'f32' as const }
      const given = options(shape, { k: 50, sink: 8, local: 32, update: 16, ...policy })
      const seq = sequence(9, n)
      const T = 16
      const results = []
      for (const engine of [engineOn(createReferenceBackend()), await open(), await open({ maxBinding: 70_000 })]) {
        const session = await engine.createSession(given)
        await feed(session, seq, 0, n - T, 501)
        const prompt = { ...rows(seq, n - T, n), queries: tokensOf(seq.queries, n, seq.d, n - T, n) }
        const prefill = await session.prefill(0, prompt)
        const queries = queriesAt(seq, n - 1)
        const attend = await session.attend(0, { queries })
        const { backend, scratch } = session.state
        const candidates = await backend.read(scratch.get('ids'), 0, scratch.get('ids').bytes)
        const retrieve = await session.retrieve(0, { queries })
        results.push({ session, prefill, attend, retrieve, candidates })
      }
      const [reference, whole, cut] = results
      await expectSameState(cut.session, whole.session)
      expect(cut.candidates).toEqual(reference.candidates)
      expect(cut.retrieve).toEqual(whole.retrieve)
      const most = seq.values.reduce((max, v) => Math.max(max, Math.abs(v)), 0)
      for (const call of ['prefill', 'attend'] as const) {
        cut[call].output.forEach((v, i) => {
          expect(Math.abs(v - reference[call].output[i]) / most).toBeLessThan(1e-4)
        })
        cut[call].lse.forEach((v, i) => {
          expect(Math.abs(v - reference[call].lse[i])).toBeLessThan(1e-4)
        })
      }
      const { session } = cut
      const once = await session.attend(0, { queries: queriesAt(seq, n - 1) })
      expect(once).toEqual(cut.attend)
    })

  it('is refused when the session is opened where candidates of a head could not be bound', async () => {
    const engine = await open({ maxBinding: 9_700 })
    const error = await refused(engine.createSession(options({ capacity: 4000 })), 'out_of_memory')
    expect(error.want).toContain('one binding')
  })

  it('refuses a recorded prompt whose queries could not be bound, before anything is recorded', async () => {
    const engine = await open({ maxBinding: 9_700 })
    const device = engine.gpu as GPUDevice
    const session = await engine.createSession(options({ store: 'f32' }))
    const [keys, values, queries, output] = [12_800, 12_800, 25_600, 25_600].map((size) =>
      device.createBuffer({ size, usage: 0x80 }),
    )
    const encoder = device.createCommandEncoder()
    const prompt = { keys, values, queries, output, tokens: 100 }
    const error = await refused(() => session.encodePrefill(encoder, 0, prompt), 'bad_shape')
    expect([error.want, session.length()]).toEqual(['at most 9188', 0])
    for (const buffer of [keys, values, queries, output]) buffer.destroy()
  })
})
