import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterEach, describe, expect, it } from 'vitest'
import type { WebgpuBackend, WebgpuOptions } from '../../sdk/backends/webgpu.ts'
import { Bytes } from '../../sdk/bytes.ts'
import { makeRotation } from '../../sdk/codec/codec.ts'
import { seededSigns } from '../../sdk/codec/signs.ts'
import { embed } from '../../wgsl/embed.ts'
import { type DeviceChoice, openWebgpu, shareWebgpu } from '../support/gpu.ts'
import { gaussians, poisoned, random } from '../support/inputs.ts'
import { emptySummary, type HostJobs, oracle, runOn, Stage, type Verb } from '../support/jobs.ts'
import { expectNear } from '../support/repeat.ts'

const opened: WebgpuBackend[] = []
async function open(options?: WebgpuOptions): Promise<WebgpuBackend> {
  const backend = await shareWebgpu(options)
  opened.push(backend)
  return backend
}
/** On a device of its own. */
async function openOwn(choice?: DeviceChoice): Promise<WebgpuBackend> {
  const backend = await openWebgpu(choice)
  opened.push(backend)
  return backend
}
afterEach(() => {
  for (const backend of opened.splice(0)) backend.dispose()
})

const d = 64
const HEADS = 3
const COUNT = 300

function rotation() {
  return makeRotation(d, Bytes.of(seededSigns(7, d)))
}

function encodeJob(seed: number): HostJobs['encode'] {
  const keys = { buf: Bytes.of(gaussians(random(seed), HEADS * COUNT * d)), dtype: 'f32', cap: COUNT, d } as const
  const summary = emptySummary(HEADS, COUNT, d)
  return { keys, heads: HEADS, from: 0, count: COUNT, rotation: rotation(), summary, at: 0 }
}

function queryJob(seed: number): HostJobs['query'] {
  const sizes = { chosen: d * 4, y: d * 4, scales: 4, t: d }
  const out = Object.fromEntries(Object.entries(sizes).map(([name, bytes]) => [name, new Bytes(HEADS * bytes)]))
  const queries = Bytes.of(gaussians(random(seed), HEADS * 2 * d))
  return { queries, heads: HEADS, group: 2, choosers: 1, rotation: rotation(), ...out } as HostJobs['query']
}

function coarseJob(seed: number): HostJobs['coarseSigns'] {
  const { summary } = oracle('encode', encodeJob(seed))
  const { t } = oracle('query', queryJob(seed + 1))
  const common = { summary, heads: HEADS, choosers: 1, count: COUNT, normWeighted: false, stride: 304 }
  return { ...common, t, scores: new Bytes(HEADS * 304 * 2) }
}

function selectJob(scores: Bytes): HostJobs['select'] {
  const bounds = { lo: -15 * d, hi: 15 * d, step: 2 }
  return { scores, stride: 304, heads: HEADS, count: COUNT, candidates: 40, ids: new Bytes(HEADS * 160), ...bounds }
}

/** Verbs whose results are whole numbers, so that any two ways must agree to the bit. */
async function expectExact<V extends Verb>(backend: WebgpuBackend, verb: V, job: HostJobs[V], name: keyof HostJobs[V]) {
  const [got] = await runOn(backend, verb, [job])
  const bytes = (value: HostJobs[V]) => (value[name] as Bytes).u8
  expect(bytes(got)).toEqual(bytes(oracle(verb, job)))
}

async function expectChain(backend: WebgpuBackend): Promise<void> {
  const [coarse] = await runOn(backend, 'coarseSigns', [coarseJob(3)])
  const want = oracle('coarseSigns', coarseJob(3))
  for (let h = 0; h < HEADS; h++) {
    const row = (job: HostJobs['coarseSigns']) => job.scores.i16.subarray(h * 304, h * 304 + COUNT)
    expect(row(coarse)).toEqual(row(want))
  }
  await expectExact(backend, 'select', selectJob(want.scores), 'ids')
  const encoded = (await runOn(backend, 'encode', [encodeJob(9)]))[0].summary
  const codes = oracle('encode', encodeJob(9)).summary
  for (let n = 0; n < HEADS * encoded.cap; n++)
    if (n % encoded.cap < COUNT)
      expect(encoded.signs.u8.subarray(n * 8, n * 8 + 8)).toEqual(codes.signs.u8.subarray(n * 8, n * 8 + 8))
}

describe('webgpu', () => {
  const ways: [string, () => Promise<WebgpuBackend>][] = [
    ['default limits, no optional feature', () => openOwn({ defaultLimits: true, bare: true })],
    ['bindings that hold one head at a time', () => open({ maxBinding: 80_000 })],
    ['workgroups folded at 2 a dimension', () => open({ maxWorkgroups: 2 * HEADS })],
  ]
  for (const [name, way] of ways)
    it(`computes the same with ${name}`, async () => {
      await expectChain(await way())
    })

  // d 32 stands in four lanes, which the software GPU's subgroups are wide enough for.
  for (const [name, subgroups] of [
    ['with subgroups', true],
    ['without subgroups', false],
  ] as const)
    it(`attends ${name}, where a row is as wide as a subgroup`, async () => {
      const backend = await open({ subgroups })
      const [wide, rows, group] = [32, 70, 4]
      const next = random(11)
      const dtype = 'f32' as const
      const full = () => ({ buf: Bytes.of(gaussians(next, HEADS * rows * wide)), dtype, cap: rows, d: wide })
      const given = {
        queries: Bytes.of(gaussians(next, HEADS * group * wide)),
        keys: full(),
        values: full(),
        heads: HEADS,
        group,
        before: [0, rows] as const,
        after: [rows, rows] as const,
        ids: null,
        k: 0,
        base: 0,
        scale: 0.2,
        parts: 1,
        partials: poisoned(HEADS * group * (wide + 2) * 4),
      }
      const [got] = await runOn(backend, 'attend', [given])
      const want = oracle('attend', given).partials.f32
      expectNear(got.partials.f32, want, 2e-5, 'partials')
    })

  it('sorts more than default workgroup memory holds, ties included', async () => {
    const backend = await openOwn({ defaultLimits: true, bare: true })
    const [heads, count, k] = [2, 3000, 1500]
    const values = Bytes.of(gaussians(random(4), heads * count).map((v) => Math.round(v * 50)))
    const out = { topIds: new Bytes(heads * k * 4), topValues: new Bytes(heads * k * 4) }
    const job = { values, ids: null, heads, count, k, ...out }
    const [got] = await runOn(backend, 'topk', [job])
    const want = oracle('topk', job)
    expect(got.topIds.u32).toEqual(want.topIds.u32)
    expect(got.topValues.f32).toEqual(want.topValues.f32)
  })

  it('refuses rows of which no binding can hold a workgroup’s', async () => {
    const backend = await open({ maxBinding: 2000 })
    await expect(runOn(backend, 'encode', [encodeJob(1)])).rejects.toMatchObject({ code: 'out_of_range' })
  })

  it('allocates all or nothing', async () => {
    const backend = await open({ memoryLimit: 1 << 20 })
    const requests = [1000, 1 << 20].map((bytes) => ({ label: 'part', bytes }))
    await expect(backend.alloc(requests)).rejects.toMatchObject({ code: 'out_of_memory' })
    expect(backend.allocated()).toBe(0)
    const huge = [1000, 2 ** 52].map((bytes) => ({ label: 'huge', bytes }))
    await expect((await openOwn()).alloc(huge)).rejects.toMatchObject({ code: 'out_of_memory' })
    await backend.alloc([{ label: 'fits', bytes: 1 << 19 }])
    expect(backend.allocated()).toBe(1 << 19)
  })

  it('gives zeroed memory, also where it lies side by side', async () => {
    const backend = await open()
    const request = { label: 'a', bytes: 1000, together: 'a' }
    const [a, b] = await backend.alloc([request, request])
    backend.write(a, 0, new Uint8Array(1000).fill(7))
    expect(await backend.read(b, 0, 1000)).toEqual(new Uint8Array(1000))
    backend.copy(a, 4, b, 8, 100)
    expect((await backend.read(b, 0, 112)).reduce((sum, x) => sum + x, 0)).toBe(700)
    backend.free([a, b])
    const [c] = await backend.alloc([request])
    expect(await backend.read(c, 0, 1000)).toEqual(new Uint8Array(1000))
  })

  it('orders writes with the dispatches around them', async () => {
    const backend = await open()
    const x = gaussians(random(1), 2 * d)
    const bufs = await backend.alloc([d * 4, d * 4, d * 4, 4, d].map((bytes) => ({ label: 'x', bytes })))
    const [buf, y1, y2, exponents, signs] = bufs
    backend.write(signs, 0, new Uint8Array(seededSigns(7, d).buffer))
    const rows = [x.subarray(0, d), x.subarray(d)]
    for (const [i, y] of [y1, y2].entries()) {
      backend.write(buf, 0, new Uint8Array(rows[i].slice().buffer))
      backend.rotate([{ x: buf, rows: 1, rotation: makeRotation(d, signs), y, exponents }])
    }
    for (const [i, y] of [y1, y2].entries()) {
      const job = {
        x: Bytes.of(rows[i].slice()),
        rows: 1,
        rotation: rotation(),
        y: new Bytes(d * 4),
        exponents: new Bytes(4),
      }
      expect(new Float32Array((await backend.read(y, 0, d * 4)).buffer)).toEqual(oracle('rotate', job).y.f32)
    }
  })

  it('counts scores anew when they did not come from the coarse kernel', async () => {
    const backend = await open()
    const stage = new Stage(backend)
    const coarse = coarseJob(5)
    await stage.run('coarseSigns', [coarse])
    const other = oracle('coarseSigns', coarseJob(6)).scores
    const [mine] = await backend.alloc([{ label: 'scores', bytes: other.bytes }])
    backend.write(mine, 0, other.u8)
    for (let round = 0; round < 2; round++) await expectExact(backend, 'select', selectJob(other), 'ids')
    stage.free()
  })

  it('records into a caller’s encoder, on a caller’s buffer', async () => {
    const backend = await open()
    const { device } = backend
    const x = gaussians(random(2), d)
    const own = device.createBuffer({ size: d * 4, usage: 0x80 | 0x04 | 0x08 })
    const [input, exponents, signs] = await backend.alloc([d * 4, 4, d].map((bytes) => ({ label: 'x', bytes })))
    backend.write(signs, 0, new Uint8Array(seededSigns(7, d).buffer))
    const encoder = device.createCommandEncoder()
    const release = backend.recordInto(encoder, () => {
      backend.write(input, 0, new Uint8Array(x.slice().buffer))
      backend.rotate([{ x: input, rows: 1, rotation: makeRotation(d, signs), y: backend.wrap(own), exponents }])
    })
    expect(new Float32Array((await backend.read(backend.wrap(own), 0, d * 4)).buffer)).toEqual(new Float32Array(d))
    device.queue.submit([encoder.finish()])
    release()
    const job = { x: Bytes.of(x), rows: 1, rotation: rotation(), y: new Bytes(d * 4), exponents: new Bytes(4) }
    expect(new Float32Array((await backend.read(backend.wrap(own), 0, d * 4)).buffer)).toEqual(
      oracle('rotate', job).y.f32,
    )
    own.destroy()
  })

  it('selects the same after a recording that was never submitted', async () => {
    const backend = await open()
    const calls: (() => void)[] = []
    const stage = new Stage({
      ...backend,
      coarseSigns: (jobs) => void calls.push(() => backend.coarseSigns(jobs)),
      select: (jobs) => void calls.push(() => backend.select(jobs)),
    })
    const coarse = coarseJob(5)
    const chosen = selectJob(coarse.scores)
    await stage.run('coarseSigns', [coarse])
    await stage.run('select', [chosen])
    const [score, select] = calls
    const both = () => {
      score()
      select()
    }
    score()
    const release = backend.recordInto(backend.device.createCommandEncoder(), both)
    both()
    release()
    const want = oracle('select', selectJob(oracle('coarseSigns', coarseJob(5)).scores))
    expect((await stage.result('select', chosen)).ids.u32).toEqual(want.ids.u32)
    stage.free()
  })

  it('answers a lost device with the typed error, in flight and after', async () => {
    const backend = await openOwn()
    const [buf] = await backend.alloc([{ label: 'x', bytes: 256 }])
    const flying = backend.read(buf, 0, 256)
    backend.device.destroy()
    await expect(flying).rejects.toMatchObject({ code: 'device_lost' })
    await expect(backend.read(buf, 0, 256)).rejects.toMatchObject({ code: 'device_lost' })
    await expect(backend.alloc([{ label: 'y', bytes: 4 }])).rejects.toMatchObject({ code: 'device_lost' })
    expect(() => backend.rotate([])).toThrow(expect.objectContaining({ code: 'device_lost' }))
    backend.free([buf])
    await expectChain(await openOwn())
  })

  it('lets a process end by itself, with code 0, work in flight or not', () => {
    const script = fileURLToPath(new URL('./webgpu-exit.ts', import.meta.url))
    const output = execFileSync(process.execPath, ['--import', 'tsx', script], { encoding: 'utf8' })
    expect(output.trim()).toBe('done')
  })

  it('embeds the shaders as they are', () => {
    expect(readFileSync(new URL('../../wgsl/sources.ts', import.meta.url), 'utf8')).toBe(embed())
  })
})
