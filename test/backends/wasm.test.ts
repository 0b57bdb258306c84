import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { openEngine } from '../../adapters/candidates.ts'
import type { Buf } from '../../sdk/backend.ts'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { f32ToBf16 } from '../../sdk/dtype.ts'
import { Engine } from '../../sdk/engine.ts'
import { BackendUnavailable, ParisError } from '../../sdk/errors.ts'
import { buildKernels, compileKernels, kernelBytes } from '../support/kernels-wasm.ts'
import { feed, options, queriesAt, rows, sequence } from '../support/sessions.ts'

const MiB = 2 ** 20
const module = compileKernels()
const bytes = (array: ArrayBufferView) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength)

afterEach(() => vi.restoreAllMocks())

describe('the module', () => {
  it('is at most 30 KB', () => expect(kernelBytes().byteLength).toBeLessThanOrEqual(30_000))

  it('is reproducible to the byte', { timeout: 60_000 }, () => {
    const folder = pathToFileURL(`${mkdtempSync(join(tmpdir(), 'kernels-'))}/`)
    try {
      buildKernels(new URL('kernels.wasm', folder))
      expect(readFileSync(new URL('kernels.wasm', folder)).equals(kernelBytes())).toBe(true)
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})

describe('where it cannot run', () => {
  it('says that SIMD is missing', () => {
    vi.spyOn(WebAssembly, 'validate').mockReturnValue(false)
    expect(() => createWasmBackend(module)).toThrow(BackendUnavailable)
    expect(() => createWasmBackend(module)).toThrow(/no WebAssembly SIMD/)
  })

  it('says so before the module is loaded, which would fail too', async () => {
    vi.spyOn(WebAssembly, 'validate').mockReturnValue(false)
    const wasm = vi.fn(async () => module)
    await expect(openEngine({ wasm }, { device: 'wasm' })).rejects.toThrow(/no WebAssembly SIMD/)
    expect(wasm).not.toHaveBeenCalled()
    const engine = await openEngine({ wasm }, {})
    expect(engine.info.passedOver).toContainEqual({
      name: 'wasm',
      reason: expect.stringMatching(/no WebAssembly SIMD/),
    })
  })

  it('says that WebAssembly is missing', () => {
    vi.stubGlobal('WebAssembly', undefined)
    try {
      expect(() => createWasmBackend(module)).toThrow(/no WebAssembly/)
    } finally {
      vi.unstubAllGlobals()
    }
  })

  it('refuses a module that is not its own', () => {
    const empty = new WebAssembly.Module(Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0))
    expect(() => createWasmBackend(empty)).toThrow(BackendUnavailable)
    const stranger = new WebAssembly.Module(
      Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 2, 7, 1, 1, 97, 1, 98, 0, 0),
    )
    expect(() => createWasmBackend(stranger)).toThrow(BackendUnavailable)
  })
})

describe('linear memory', () => {
  const requests = (...sizes: number[]) => sizes.map((size, i) => ({ label: `part ${i}`, bytes: size }))

  it('takes disposed memory again, whatever the order, for ever', async () => {
    const backend = createWasmBackend(module, { maxBytes: 4 * MiB })
    let state = 7
    const random = (below: number) => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0
      return Math.floor((state / 2 ** 32) * below)
    }
    const live: Buf[] = []
    for (let round = 0; round < 5000; round++) {
      if (live.length > 0 && (live.length > 40 || random(2) === 0)) backend.free(live.splice(random(live.length), 1))
      else live.push(...(await backend.alloc(requests(random(60_000)))))
    }
    backend.free(live)
    expect(backend.allocated()).toBe(0)
    const [whole] = await backend.alloc(requests(3.75 * MiB))
    expect(whole.bytes).toBe(3.75 * MiB)
  })

  it('hands out zeroed memory', async () => {
    const backend = createWasmBackend(module)
    const [first] = await backend.alloc(requests(1000))
    backend.write(first, 0, new Uint8Array(1000).fill(255))
    backend.free([first])
    const [again] = await backend.alloc(requests(100_000))
    expect((await backend.read(again, 0, again.bytes)).every((b) => b === 0)).toBe(true)
  })

  it('rounds sizes up to 4 and gives empty buffers', async () => {
    const backend = createWasmBackend(module)
    const buffers = await backend.alloc(requests(0, 1, 4, 5))
    expect(buffers.map((b) => b.bytes)).toEqual([0, 4, 4, 8])
  })

  it('keeps contents and views through growth', async () => {
    const backend = createWasmBackend(module)
    const [small] = await backend.alloc(requests(64))
    backend.write(small, 0, new Uint8Array(64).fill(9))
    await backend.alloc(requests(20 * MiB))
    backend.write(small, 32, new Uint8Array(32).fill(8))
    expect([...(await backend.read(small, 28, 8))]).toEqual([9, 9, 9, 9, 8, 8, 8, 8])
  })

  it('copies and clears', async () => {
    const backend = createWasmBackend(module)
    const [a, b] = await backend.alloc(requests(16, 16))
    backend.write(
      a,
      0,
      Uint8Array.from({ length: 16 }, (_, i) => i),
    )
    backend.copy(a, 4, b, 8, 8)
    expect([...(await backend.read(b, 0, 16))]).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 4, 5, 6, 7, 8, 9, 10, 11])
    backend.clear(b)
    expect([...(await backend.read(b, 0, 16))]).toEqual(new Array(16).fill(0))
  })

  it('allocates all or nothing, naming the bytes asked and the cap', async () => {
    const backend = createWasmBackend(module, { maxBytes: 8 * MiB })
    const refused = backend.alloc(requests(MiB, MiB, 7 * MiB))
    await expect(refused).rejects.toThrow(ParisError)
    await expect(refused).rejects.toMatchObject({ code: 'out_of_memory' })
    await expect(refused).rejects.toThrow(`${9 * MiB} bytes asked`)
    await expect(refused).rejects.toThrow(`${8 * MiB} bytes`)
    expect(backend.allocated()).toBe(0)
    await expect(backend.alloc(requests(7 * MiB))).resolves.toHaveLength(1)
  })

  it('refuses well before 4 GiB by default', async () => {
    const backend = createWasmBackend(module)
    await expect(backend.alloc(requests(3.6 * 2 ** 30))).rejects.toMatchObject({ code: 'out_of_memory' })
    await expect(backend.alloc(requests(2 ** 40))).rejects.toMatchObject({ code: 'out_of_memory' })
  })

  it('works above 2 GiB, where addresses have their top bit set', async () => {
    const backend = createWasmBackend(module)
    await backend.alloc(requests(2.25 * 2 ** 30))
    const [values, ids, top] = await backend.alloc(requests(4096, 40, 40))
    const given = Float32Array.from({ length: 1024 }, (_, i) => (i * 389) % 1024)
    backend.write(values, 0, bytes(given))
    backend.topk([{ values, ids: null, heads: 1, count: 1024, k: 10, topIds: ids, topValues: top }])
    const best = new Float32Array((await backend.read(top, 0, 40)).buffer)
    expect([...best]).toEqual([1023, 1022, 1021, 1020, 1019, 1018, 1017, 1016, 1015, 1014])
  })

  for (const coarse of ['signs', 'collision'] as const)
    it(`runs a whole session there with the same bytes, ${coarse}`, async () => {
      const results = async (ballast: number) => {
        const backend = createWasmBackend(module)
        await backend.alloc(requests(ballast))
        const engine = new Engine(backend)
        const seq = sequence(5, 400, { kvHeads: 2, queryHeads: 6, headDim: 40 })
        const policy = { coarse, group: 'max', normWeighted: coarse === 'signs', beta: 0.2 } as const
        const config = options({ queryHeads: 6, headDim: 40, store: 'f16' }, policy)
        const session = await engine.createSession(config)
        const prompt = await session.prefill(0, { ...rows(seq, 0, 100), queries: seq.queries.slice(0, 6 * 100 * 40) })
        await feed(session, seq, 100, 400, 7)
        const queries = queriesAt(seq, 399)
        return {
          prompt,
          step: await session.attend(0, { queries }),
          found: await session.retrieve(0, { queries, k: 20 }),
        }
      }
      expect(await results(2.25 * 2 ** 30)).toEqual(await results(0))
    })

  it('keeps the rows of a session that does not fit it on the host, with the same bytes', async () => {
    const seq = sequence(6, 50_000, { headDim: 16 })
    const config = options({ store: 'f32', capacity: 65_536 }, { update: 256, hotRows: 64 })
    const results = async (maxBytes: number) => {
      const backend = createWasmBackend(module, { maxBytes })
      const session = await new Engine(backend).createSession(config)
      await feed(session, seq, 0, 49_900, 7000)
      const steps: Float32Array[] = []
      for (let t = 49_900; t < 49_950; t++) {
        await feed(session, seq, t, t + 1)
        const { output, lse } = await session.attend(0, { queries: queriesAt(seq, t) })
        steps.push(output, lse)
      }
      const { pages } = session.memory()
      backend.dispose()
      return { pages, steps }
    }
    const [small, large] = [await results(8 * MiB), await results(64 * MiB)]
    expect(small.pages).toBeGreaterThan(8 * MiB)
    expect(large.pages).toBeUndefined()
    expect(small.steps).toEqual(large.steps)
  })

  it('lets scratch go where it stands between an allocation and its room', async () => {
    const backend = createWasmBackend(module, { maxBytes: 8 * MiB })
    const [low] = await backend.alloc(requests(4 * MiB))
    const [values, top] = await backend.alloc(requests(4096, 4096))
    backend.topk([{ values, ids: null, heads: 1, count: 1024, k: 1024, topIds: top, topValues: top }])
    backend.free([low, values, top])
    await expect(backend.alloc(requests(7.5 * MiB))).resolves.toHaveLength(1)
  })

  it('refuses scratch beyond the cap and goes on', async () => {
    const backend = createWasmBackend(module, { maxBytes: 2 * MiB })
    const [values, topIds] = await backend.alloc(requests(800_000, 800_000))
    const job = { values, ids: null, heads: 1, count: 200_000, topIds, topValues: topIds }
    expect(() => backend.topk([{ ...job, k: 200_000 }])).toThrow(/scratch.*out_of_memory/)
    backend.topk([{ ...job, k: 10 }])
    expect([...new Uint32Array((await backend.read(topIds, 0, 4)).buffer)]).toEqual([0])
  })

  it('frees once, and everything on dispose', async () => {
    const backend = createWasmBackend(module)
    const [a, b] = await backend.alloc(requests(100, 200))
    backend.free([a])
    backend.free([a])
    expect(backend.allocated()).toBe(b.bytes)
    backend.dispose()
    expect(backend.allocated()).toBe(0)
  })
})

describe('select over more keys than 16 bits number', () => {
  const N = 200_003
  const scenes: Record<string, (n: number) => number> = {
    'spread scores': (n) => ((n * 7919) % 961) * 2 - 960,
    'the best where the sample does not look': (n) => (n > 70_000 && n % 256 >= 16 ? 900 : (n % 400) - 500) & ~1,
    'ties everywhere': () => 0,
    'best in the last run': (n) => (n > 196_700 ? 800 : -800),
  }
  for (const [scene, score] of Object.entries(scenes))
    for (const candidates of [1, 3000, 20_000, 150_000])
      it(`${scene}, C = ${candidates}`, async () => {
        const backend = createWasmBackend(module)
        const stride = Math.ceil(N / 16) * 16
        const [scores, ids] = await backend.alloc([
          { label: 'scores', bytes: stride * 2 },
          { label: 'ids', bytes: candidates * 4 },
        ])
        const given = Int16Array.from({ length: stride }, (_, n) => score(n))
        backend.write(scores, 0, bytes(given))
        backend.select([{ scores, stride, heads: 1, count: N, candidates, lo: -960, hi: 960, step: 2, ids }])
        const order = Uint32Array.from({ length: N }, (_, n) => n).sort((a, b) => given[b] - given[a] || a - b)
        const got = new Uint32Array((await backend.read(ids, 0, candidates * 4)).buffer)
        expect(got).toEqual(order.slice(0, candidates).sort())
      })
})

describe('exact products', () => {
  it('of equal rows are equal wherever they stand, listed or not, whatever their type', async () => {
    const backend = createWasmBackend(module)
    const d = 56
    const count = 7
    const row = Float32Array.from({ length: d }, (_, j) => Math.round(Math.sin(j) * 128) / 128)
    const query = Float32Array.from({ length: d }, (_, j) => Math.cos(j * j))
    const sizes = [count * d * 4, count * d * 2, d * 4, count * 4, count * 4]
    const [f32, bf16, chosen, ids, estimates] = await backend.alloc(
      sizes.map((size) => ({ label: 'part', bytes: size })),
    )
    const all = Float32Array.from({ length: count * d }, (_, i) => row[i % d])
    backend.write(f32, 0, bytes(all))
    backend.write(bf16, 0, bytes(Uint16Array.from(all, (x) => f32ToBf16(x))))
    backend.write(chosen, 0, bytes(query))
    backend.write(ids, 0, bytes(Uint32Array.of(0, 1, 2, 3, 4, 5, 6)))
    const seen = new Set<number>()
    for (const stored of [{ buf: f32, dtype: 'f32' } as const, { buf: bf16, dtype: 'bf16' } as const])
      for (const list of [null, ids]) {
        const source = { rows: { ...stored, cap: count, d }, base: 0, chosen, scale: 1 }
        backend.rerank([{ source, heads: 1, choosers: 1, ids: list, count, estimates }])
        for (const x of new Float32Array((await backend.read(estimates, 0, count * 4)).buffer)) seen.add(x)
      }
    expect(seen.size).toBe(1)
  })
})
