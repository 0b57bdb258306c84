import { describe, expect, it } from 'vitest'
import type { Backend } from '../../sdk/backend.ts'
import { Bytes } from '../../sdk/bytes.ts'
import { makeRotation, type Summary } from '../../sdk/codec/codec.ts'
import { LEVELS } from '../../sdk/codec/levels.ts'
import { onEveryBackend } from '../support/backends.ts'
import { expectCodes } from '../support/edges.ts'
import { poisoned } from '../support/inputs.ts'
import { emptySummary, type HostJobs, Stage } from '../support/jobs.ts'
import { codesOf, expectNear, expectSame, scoresOf } from '../support/repeat.ts'
import { loadTensors } from '../support/tensors.ts'

interface Case {
  heads: number
  group: number
  tokens: number
  headDim: number
  paddedDim: number
  k: number
  candidates: number
}

/** One golden file with every job of the default path over its inputs. */
function load(name: string) {
  const file = loadTensors(new URL(`golden-default-${name}.safetensors`, import.meta.url))
  const shape = JSON.parse(file.metadata.get('case')!) as Case
  const { heads, group, tokens: N, headDim: d, paddedDim: D, k, candidates: C } = shape
  const rotation = makeRotation(d, Bytes.of(file.get('srht_signs', 'I8')))
  const keys = { buf: Bytes.of(file.get('keys', 'F32')), dtype: 'f32' as const, cap: N, d }
  const summary = emptySummary(heads, N, D)
  const one = { heads, choosers: 1 }
  const encode: HostJobs['encode'] = { keys, heads, from: 0, count: N, rotation, summary, at: 0 }
  const rotate: HostJobs['rotate'] = { x: keys.buf, rows: 16, rotation, y: poisoned(64 * D), exponents: poisoned(64) }
  const query: HostJobs['query'] = {
    ...one,
    queries: Bytes.of(file.get('queries', 'F32')),
    group,
    rotation,
    chosen: poisoned(heads * d * 4),
    y: poisoned(heads * D * 4),
    scales: poisoned(heads * 4),
    t: poisoned(heads * D),
  }
  const scores = poisoned(heads * summary.cap * 2)
  const ids = poisoned(heads * C * 4)
  const coarse: HostJobs['coarseSigns'] = {
    ...one,
    summary,
    count: N,
    t: query.t,
    normWeighted: false,
    scores,
    stride: summary.cap,
  }
  const bounds = { lo: -15 * D, hi: 15 * D, step: 2 }
  const select: HostJobs['select'] = { scores, stride: summary.cap, heads, count: N, candidates: C, ...bounds, ids }
  const source = { codes: summary, y: query.y, scales: query.scales }
  const everyKey: HostJobs['rerank'] = { ...one, source, ids: null, count: N, estimates: poisoned(heads * N * 4) }
  const rerank: HostJobs['rerank'] = { ...one, source, ids, count: C, estimates: poisoned(heads * C * 4) }
  const out = { topIds: poisoned(heads * k * 4), topValues: poisoned(heads * k * 4) }
  const topk: HostJobs['topk'] = { values: rerank.estimates, ids, heads, count: C, k, ...out }
  return { file, shape, encode, rotate, query, coarse, select, everyKey, rerank, topk }
}

/** The golden codes as a summary. */
function golden({ file, shape, encode }: ReturnType<typeof load>): Summary<Bytes> {
  const { heads, tokens } = shape
  const padded = (tensor: Uint8Array | Uint16Array) => {
    const row = tensor.byteLength / (heads * tokens)
    const out = new Bytes(heads * encode.summary.cap * row)
    const bytes = new Uint8Array(tensor.buffer)
    for (let h = 0; h < heads; h++)
      out.u8.set(bytes.subarray(h * tokens * row, (h + 1) * tokens * row), h * encode.summary.cap * row)
    return out
  }
  return {
    ...encode.summary,
    signs: padded(file.get('sign_plane', 'U8')),
    magnitudes: padded(file.get('magnitude_planes', 'U8')),
    weights: padded(file.get('weights_u8', 'U8')),
    scales: padded(file.get('weight_scale_bf16', 'BF16')),
  }
}

/** The whole path without a look in between. */
async function retrieve(backend: Backend, given: ReturnType<typeof load>) {
  const stage = new Stage(backend)
  await stage.run('rotate', [given.rotate])
  await stage.run('encode', [given.encode])
  await stage.run('query', [given.query])
  await stage.run('coarseSigns', [given.coarse])
  await stage.run('select', [given.select])
  await stage.run('rerank', [given.everyKey])
  await stage.run('rerank', [given.rerank])
  await stage.run('topk', [given.topk])
  const results = {
    rotate: await stage.result('rotate', given.rotate),
    encode: await stage.result('encode', given.encode),
    query: await stage.result('query', given.query),
    coarse: await stage.result('coarseSigns', given.coarse),
    select: await stage.result('select', given.select),
    everyKey: await stage.result('rerank', given.everyKey),
    topk: await stage.result('topk', given.topk),
  }
  stage.free()
  return results
}

for (const name of ['d80', 'd128-extreme']) {
  const given = load(name)
  const { file, shape } = given
  const { heads, tokens: N, headDim: d, paddedDim: D } = shape

  onEveryBackend(`golden default path ${name}`, (backend) => {
    it('gives the golden codes, scores, candidates and keys', async () => {
      const got = await retrieve(backend(), given)
      const rotated = got.rotate.y.f32
      expectSame(rotated, file.get('rotated_first', 'F32').subarray(0, 16 * D), 'rotated')
      expectSame(got.query.chosen.f32, file.get('query_sum', 'F32'), 'query sum')
      expectSame(got.query.t.i8, file.get('query_t', 'I8'), 't')
      expectSame(scoresOf(got.coarse), file.get('signs_scores', 'I32'), 'score')
      expectSame(got.select.ids.u32, file.get('candidates', 'U32'), 'candidate')
      expectSame(got.topk.topIds.u32, file.get('top_k', 'U32'), 'top k')

      expectCodes(got.encode)
      const [mine, theirs] = [got.encode.summary, golden(given)]
      for (let h = 0; h < heads; h++)
        expectSame(
          mine.signs.u8.subarray((h * mine.cap * D) / 8, ((h * mine.cap + N) * D) / 8),
          theirs.signs.u8.subarray((h * mine.cap * D) / 8, ((h * mine.cap + N) * D) / 8),
          `sign byte of head ${h}`,
        )
      const codes = codesOf(mine, N)
      const other = codesOf(theirs, N).filter((code, i) => code !== codes[i]).length
      expect(other / codes.length, 'codes on the other side of a rounding edge').toBeLessThan(1e-4)

      const row = (buf: Float32Array, i: number) => Math.hypot(...buf.subarray(i * d, (i + 1) * d))
      const keys = given.encode.keys.buf.f32
      const most = (i: number) =>
        (1e-5 * row(keys, i) * row(got.query.chosen.f32, Math.floor(i / N))) / shape.group + 2 ** -120
      expectNear(got.everyKey.estimates.f32, file.get('estimate', 'F32'), most, 'estimate')
    })
  })

  describe(`golden file ${name}`, () => {
    it('obeys the rule by which codes are judged', () => {
      expectCodes({ ...given.encode, summary: golden(given) })
    })

    it('was made with these levels', () => {
      expectNear(file.get('magnitude_thresholds', 'F32'), LEVELS.thresholds.map(Math.fround), 0, 'threshold')
      expectNear(file.get('magnitude_centers', 'F32'), LEVELS.centers.map(Math.fround), 0, 'center')
    })
  })
}
