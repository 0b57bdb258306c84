import { expect, it } from 'vitest'
import { Bytes } from '../../sdk/bytes.ts'
import { magnitudeByte, makeRotation, type Summary, signByte } from '../../sdk/codec/codec.ts'
import { LEVELS } from '../../sdk/codec/levels.ts'
import { tierLimits, tierWeights } from '../../sdk/kernels/coarse-collision.ts'
import { estimate } from '../../sdk/kernels/rerank.ts'
import { largest } from '../support/attention.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectCodes } from '../support/edges.ts'
import { poisoned } from '../support/inputs.ts'
import { emptySummary, type HostJobs, oracle, runOne, Stage } from '../support/jobs.ts'
import { expectNear, expectSame, scoresOf } from '../support/repeat.ts'
import { loadTensors, type TensorFile } from '../support/tensors.ts'

interface Case {
  heads: number
  group: number
  tokens: number
  headDim: number
  k: number
  candidates: number
  collisionRatio: number
  tierCounts: number[]
}

/** One golden file with the jobs of the published path up to its collision scores. */
function load(name: string) {
  const file = loadTensors(new URL(`golden-${name}.safetensors`, import.meta.url))
  const shape = JSON.parse(file.metadata.get('case')!) as Case
  const { heads, group, tokens: N, headDim: d } = shape
  const rotation = makeRotation(d, Bytes.of(file.get('srht_signs', 'I8')))
  const rows = (tensor: string) => ({ buf: Bytes.of(file.get(tensor, 'F32')), dtype: 'f32' as const, cap: N, d })
  const [keys, values] = [rows('keys'), rows('values')]
  const summary = emptySummary(heads, N, d, { counts: true })
  const encode: HostJobs['encode'] = { keys, heads, from: 0, count: N, rotation, summary, at: 0 }
  const query: HostJobs['query'] = {
    queries: Bytes.of(file.get('queries', 'F32')),
    heads,
    group,
    choosers: 1,
    rotation,
    chosen: poisoned(heads * d * 4),
    y: poisoned(heads * d * 4),
    scales: poisoned(heads * 4),
    t: poisoned(heads * d),
  }
  const stride = summary.cap
  const scores = poisoned(heads * stride * 2)
  const rest = { heads, choosers: 1, count: N, y: query.y, rho: shape.collisionRatio, scores, stride }
  const coarse: HostJobs['coarseCollision'] = { summary, ...rest }
  const source = { codes: summary, y: query.y, scales: query.scales }
  const estimates = poisoned(heads * N * 4)
  const rerank: HostJobs['rerank'] = { source, heads, choosers: 1, ids: null, count: N, estimates }
  return { file, shape, keys, values, encode, query, coarse, rerank }
}

/** The codes as the golden files pack them: [H, B, N, 4] nibbles of sign << 3 | index, the low one first. */
function packed(s: Summary<Bytes>, heads: number, N: number): number[] {
  const out: number[] = []
  for (let h = 0; h < heads; h++)
    for (let b = 0; b < s.D / 8; b++)
      for (let n = 0; n < N; n++) {
        const planes = [2, 1, 0].map((p) => s.magnitudes.u8[magnitudeByte(s, h, n, p, b)])
        const bits = [s.signs.u8[signByte(s, h, n, b)], ...planes]
        const nibble = (j: number) => bits.reduce((code, plane) => (code << 1) | ((plane >> j) & 1), 0)
        for (let j = 0; j < 8; j += 2) out.push(nibble(j) | (nibble(j + 1) << 4))
      }
  return out
}

/** Estimates of every key with the golden f32 weights, stored [H, B, N]. */
function withGoldenWeights(file: TensorFile, s: Summary<Bytes>, query: HostJobs['query'], N: number): Float64Array {
  const weights = file.get('block_weights', 'F32')
  const B = s.D / 8
  return Float64Array.from({ length: query.heads * N }, (_, i) => {
    const [h, n] = [Math.floor(i / N), i % N]
    const own = Array.from({ length: B }, (_, b) => weights[(h * B + b) * N + n])
    return estimate(s, h, n, query.y.f32, h * s.D, own) * query.scales.f32[h]
  })
}

const rms = (list: readonly number[]) => Math.sqrt(list.reduce((sum, v) => sum + v * v, 0) / list.length)

for (const name of ['d64', 'd128']) {
  const given = load(name)
  const { file, shape } = given
  const { heads, tokens: N, headDim: d, k, candidates: C, group } = shape

  onEveryBackend(`golden published path ${name}`, (backend, backendName) => {
    async function collide() {
      const stage = new Stage(backend())
      await stage.run('encode', [given.encode])
      await stage.run('query', [given.query])
      await stage.run('coarseCollision', [given.coarse])
      await stage.run('rerank', [given.rerank])
      const encode = await stage.result('encode', given.encode)
      const query = await stage.result('query', given.query)
      const coarse = await stage.result('coarseCollision', given.coarse)
      const { estimates } = await stage.result('rerank', given.rerank)
      stage.free()
      return { encode, query, coarse, estimates }
    }

    /** The C best by score, then the k best of them by estimate. */
    function retrieve(scores: Bytes, estimates: ArrayLike<number>): Uint32Array {
      const stride = given.coarse.stride
      const bounds = { lo: 0, hi: (6 * d) / 8, step: 1 }
      const chosen = { scores, stride, heads, count: N, candidates: C, ...bounds, ids: poisoned(heads * C * 4) }
      const { ids } = oracle('select', chosen)
      const values = Bytes.of(Float32Array.from(ids.u32, (id, i) => estimates[Math.floor(i / C) * N + id]))
      const out = { topIds: poisoned(heads * k * 4), topValues: poisoned(heads * k * 4) }
      return oracle('topk', { values, ids, heads, count: C, k, ...out }).topIds.u32
    }

    it('gives the golden ids, codes, counts, tier weights and scores', async () => {
      const { encode, query, coarse } = await collide()
      const s = encode.summary
      expectCodes(encode)
      const ids = file.get('centroid_ids', 'U8')
      const mine = ids.map((_, i) => {
        const [h, b, n] = [Math.floor(i / (N * (d / 8))), Math.floor(i / N) % (d / 8), i % N]
        return s.signs.u8[signByte(s, h, n, b)]
      })
      expectSame(mine, ids, 'centroid id')
      const codes = packed(s, heads, N)
      const golden = file.get('packed_codes', 'U8')
      if (backendName === 'reference') expectSame(codes, golden, 'packed code')
      const other = golden.filter((code, i) => code !== codes[i]).length
      expect(other / golden.length, 'codes on the other side of a rounding edge').toBeLessThan(1e-4)
      expectSame(s.counts!.u32, file.get('centroid_counts', 'U32'), 'count')
      expect(tierLimits(N, shape.collisionRatio)).toEqual(shape.tierCounts)
      const tiers = file.get('centroid_tier_weights', 'U8')
      const votes = { ...coarse, summary: s, y: query.y }
      for (let h = 0; h < heads; h++)
        for (let b = 0; b < d / 8; b++) {
          const at = (h * (d / 8) + b) * 256
          expectSame(tierWeights(votes, h, 0, b), tiers.subarray(at, at + 256), `tier of head ${h} subspace ${b}`)
        }
      expectSame(scoresOf(coarse), file.get('collision_scores', 'U8'), 'collision score')
      const last = Array.from({ length: heads }, (_, h) => {
        const row = [...coarse.scores.i16.subarray(h * coarse.stride, h * coarse.stride + N)]
        return row.sort((a, b) => b - a)[C - 1]
      })
      expect(last).toEqual([...file.get('candidate_threshold', 'U8')])
    })

    it('gives the golden estimates and keys with the golden weights, and nearly so with its own', async () => {
      const { encode, query, coarse, estimates } = await collide()
      const exact = withGoldenWeights(file, encode.summary, query, N)
      const golden = file.get('rsq_ip', 'F32')
      expectNear(exact, golden, 1e-4 * Math.max(...golden.map(Math.abs)), 'estimate')
      const best = retrieve(coarse.scores, exact)
      expectSame(best, file.get('top_k', 'U32'), 'top k')
      const own = retrieve(coarse.scores, estimates.f32)
      for (let h = 0; h < heads; h++) {
        const kept = new Set(own.subarray(h * k, (h + 1) * k))
        const missing = best.subarray(h * k, (h + 1) * k).filter((id) => !kept.has(id)).length
        expect(missing, `keys of head ${h} that 8-bit weights change`).toBeLessThanOrEqual(1)
      }
      const change = [...exact].map((v, i) => estimates.f32[i] - v)
      expect(rms(change) / rms([...exact])).toBeLessThan(0.002)
    })

    it('attends as the golden file, to all keys and to the retrieved ones', async () => {
      const { keys, values } = given
      const most = backendName === 'reference' ? 1e-5 : 1e-4 * largest(values, heads, N)
      const ids = Bytes.of(file.get('top_k', 'U32'))
      const all = { before: [0, N], ids: null, k: 0 } as const
      const some = { before: [0, 0], ids, k } as const
      for (const [set, tensor] of [
        [all, 'attention_full'],
        [some, 'attention_top_k'],
      ] as const) {
        const parts = 3
        const partials = poisoned(parts * heads * group * (d + 2) * 4)
        const queries = given.query.queries
        const rest = { after: [0, 0] as const, base: 0, scale: 1 / Math.sqrt(d), parts, partials }
        const stage = new Stage(backend())
        await stage.run('attend', [{ queries, keys, values, heads, group, ...set, ...rest }])
        const out = { output: poisoned(heads * group * d * 4), lse: poisoned(heads * group * 4) }
        const merge = { partials, parts, queryHeads: heads * group, d, ...out }
        await stage.run('merge', [merge])
        expectNear((await stage.result('merge', merge)).output.f32, file.get(tensor, 'F32'), most, tensor)
        stage.free()
      }
    })

    it('rotates to the golden unit vectors', async () => {
      const x = Bytes.of(file.get('keys', 'F32').subarray(0, 16 * d))
      const job = { x, rows: 16, rotation: given.encode.rotation, y: poisoned(64 * d), exponents: poisoned(64) }
      const { y } = await runOne(backend(), 'rotate', job)
      const unit = y.f32.map((v, i) => {
        const at = i - (i % d)
        return v / (Math.hypot(...y.f32.subarray(at, at + d)) || 1)
      })
      expectNear(unit, file.get('rotated_keys_head', 'F32').subarray(0, 16 * d), 1e-6, 'rotated')
    })
  })
}

it('uses the golden levels', () => {
  const { file } = load('d128')
  expectNear(LEVELS.thresholds, file.get('magnitude_thresholds', 'F32'), 1e-7, 'threshold')
  expectNear(LEVELS.centers, file.get('magnitude_centers', 'F32'), 1e-7, 'center')
})
