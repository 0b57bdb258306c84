import { describe, expect, it } from 'vitest'
import { f32ToF16 } from '../../sdk/dtype.ts'
import type { ErrorCode } from '../../sdk/errors.ts'
import { buildFrame } from '../../sdk/http/tensors.ts'
import { sequence } from '../support/sessions.ts'
import { type Caller, expectProblem, queryTensor, rowTensors } from './support.ts'

const seq = sequence(9, 40)
const good = buildFrame(rowTensors(seq, 0, 2))

/** A body whose header is this text, whatever it says, and so many bytes of data. */
function withHeader(header: unknown, data = 512, size?: bigint): Uint8Array<ArrayBuffer> {
  const json = new TextEncoder().encode(typeof header === 'string' ? header : JSON.stringify(header))
  const out = new Uint8Array(8 + json.length + data)
  new DataView(out.buffer).setBigUint64(0, size ?? BigInt(json.length), true)
  out.set(json, 8)
  return out
}

const entry = (shape: unknown, from: unknown, to: unknown, dtype: unknown = 'F32') => ({
  dtype,
  shape,
  data_offsets: [from, to],
})
const two = (keys: unknown, values: unknown) => withHeader({ keys, values })
const fine = entry([2, 2, 16], 0, 256)
const after = entry([2, 2, 16], 256, 512)

/** Bodies of an append that are refused, by what is wrong with them. */
const BODIES: readonly (readonly [string, Uint8Array<ArrayBuffer>, ErrorCode])[] = [
  ['nothing', new Uint8Array(), 'bad_body'],
  ['7 bytes', new Uint8Array(7), 'bad_body'],
  ['a header of 0', withHeader('', 0), 'bad_body'],
  ['a header above 64 KiB', withHeader(' '.repeat(65 * 1024)), 'bad_body'],
  ['a header beyond the body', withHeader({}, 0, 5000n), 'bad_body'],
  ['a header of 2^63', withHeader({}, 0, 1n << 63n), 'bad_body'],
  [
    'a header that is no UTF-8',
    (() => {
      const b = withHeader('{"aa":1}')
      b[11] = 0xff
      return b
    })(),
    'bad_body',
  ],
  ['a header that is no JSON', withHeader('{"keys":'), 'bad_body'],
  ['a header that is a list', withHeader('[]'), 'bad_body'],
  ['a deep header', withHeader('['.repeat(20000)), 'bad_body'],
  ['a product beyond 2^53', two(entry([2 ** 30, 2 ** 30, 16], 0, 256), after), 'bad_body'],
  ['a product that wraps to a small one', two(entry([2 ** 32, 2 ** 32, 16], 0, 256), after), 'bad_body'],
  ['a negative dimension', two(entry([2, -2, 16], 0, 256), after), 'bad_body'],
  ['a fractional dimension', two(entry([2, 1.5, 16], 0, 256), after), 'bad_body'],
  ['a huge dimension', two(entry([2, 1e300, 16], 0, 256), after), 'bad_body'],
  ['a dimension that is text', two(entry([2, '2', 16], 0, 256), after), 'bad_body'],
  ['overlapping offsets', two(fine, entry([2, 2, 16], 128, 384)), 'bad_body'],
  ['reversed offsets', two(entry([2, 2, 16], 256, 0), after), 'bad_body'],
  ['unsafe offsets', two(fine, entry([2, 2, 16], 2 ** 60, 2 ** 60 + 256)), 'bad_body'],
  ['a hole', two(fine, entry([2, 1, 16], 384, 512)), 'bad_body'],
  ['data behind the end', withHeader({ keys: fine, values: after }, 513), 'bad_body'],
  ['data that is short', withHeader({ keys: fine, values: after }, 511), 'bad_body'],
  ['a name twice', withHeader(`{"keys":${JSON.stringify(fine)},"keys":${JSON.stringify(after)}}`), 'bad_body'],
  ['__proto__', withHeader(`{"keys":${JSON.stringify(fine)},"__proto__":${JSON.stringify(after)}}`), 'bad_body'],
  [
    '17 tensors',
    withHeader(Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`t${i}`, entry([0], 0, 0)])), 0),
    'bad_body',
  ],
  ['an unknown name', buildFrame([...rowTensors(seq, 0, 2), queryTensor(seq, 0)]), 'bad_body'],
  ['a missing name', buildFrame(rowTensors(seq, 0, 2).slice(1)), 'bad_body'],
  ['rank 0', two(entry([], 0, 4), entry([2, 2, 16], 4, 260)).slice(0, -252), 'bad_shape'],
  ['rank 5', two(entry([1, 1, 2, 2, 16], 0, 256), after), 'bad_shape'],
  ['rank 2', two(entry([4, 16], 0, 256), after), 'bad_shape'],
  ['another head dimension', two(entry([2, 4, 8], 0, 256), after), 'bad_shape'],
  ['more values than keys', buildFrame([rowTensors(seq, 0, 2)[0], rowTensors(seq, 0, 3)[1]]), 'bad_shape'],
  ['an integer dtype', two(entry([2, 2, 16], 0, 256, 'I32'), after), 'bad_dtype'],
  ['an unknown dtype', two(entry([2, 2, 16], 0, 256, 'F7'), after), 'bad_body'],
]

/** Every kind of bad input: a problem each, nothing changed, and the next good request answered. */
export function badInputSuite(caller: () => Caller): void {
  describe('bad input', () => {
    /** Refused with this code, and the session is as it was and goes on. */
    async function refuse(
      method: string,
      path: (id: string) => string,
      body: BodyInit | undefined,
      code: ErrorCode,
      headers?: Record<string, string>,
    ) {
      const alice = caller()
      const id = await alice.open()
      const problem = await expectProblem(await alice.send(method, path(id), body, headers), code)
      expect(await alice.lengths(id)).toEqual([0, 0])
      expect(await alice.append(id, seq, 0, 2)).toMatchObject({ length: 2 })
      expect((await alice.send('DELETE', `/v1/sessions/${id}`)).status).toBe(204)
      return problem
    }
    const kv = (id: string) => `/v1/sessions/${id}/layers/0/kv?offset=0`

    it.each(BODIES)('%s', async (_, body, code) => {
      await refuse('PUT', kv, body, code)
    })

    it('NaN and Inf, with their place', async () => {
      for (const [bad, said] of [
        [Number.NaN, 'NaN'],
        [Number.POSITIVE_INFINITY, 'Inf'],
        [Number.NEGATIVE_INFINITY, 'Inf'],
      ] as const) {
        const tensors = rowTensors(seq, 0, 2)
        ;(tensors[1].data as Float32Array)[2 * 16 + 16 + 5] = bad
        const problem = await refuse('PUT', kv, buildFrame(tensors), 'not_finite')
        expect(problem.got).toBe(`${said} at head 1, token 1, coordinate 5`)
      }
      const half = rowTensors(seq, 0, 2).map(({ name, shape, data }) => ({
        name,
        shape,
        data: { dtype: 'f16' as const, data: Uint16Array.from(data as Float32Array, f32ToF16) },
      }))
      half[0].data.data[3] = 0x7c01
      expect((await refuse('PUT', kv, buildFrame(half), 'not_finite')).got).toBe('NaN at head 0, token 0, coordinate 3')
    })

    it('an encoded body', async () => {
      await refuse('PUT', kv, good, 'unsupported_media', { 'content-encoding': 'gzip' })
      await refuse('PUT', kv, good, 'unsupported_media', { 'content-encoding': 'br' })
      await expectProblem(
        await caller().send('POST', '/v1/sessions', '{}', { 'content-encoding': 'gzip' }),
        'unsupported_media',
      )
      await expectProblem(
        await caller().send('POST', '/v1/sessions:restore', good, { 'content-encoding': 'gzip' }),
        'unsupported_media',
      )
    })

    it('layers and scalars out of range', async () => {
      const at = (path: string) => (id: string) => `/v1/sessions/${id}/layers/${path}`
      const query = () => buildFrame([queryTensor(seq, 0)])
      await refuse('PUT', at('2/kv?offset=0'), good, 'bad_layer')
      await refuse('PUT', at('999999999999/kv?offset=0'), good, 'bad_layer')
      for (const layer of ['-1', '1.5', 'x', '%00', '1e3', '%0d%0a'])
        await refuse('PUT', at(`${layer}/kv?offset=0`), good, 'bad_parameter')
      for (const offset of [
        'offset=-1',
        'offset=1.5',
        'offset=',
        'offset=NaN',
        'offset=0x0',
        'offset=99999999999999999',
        '',
      ])
        await refuse('PUT', at(`0/kv?${offset}`), good, 'bad_parameter')
      await refuse('PUT', at('0/kv?offset=1'), good, 'offset_mismatch')
      await refuse('POST', at('0/retrieve?k=0'), query(), 'bad_k')
      await refuse('POST', at('0/retrieve?k=-1'), query(), 'bad_parameter')
      await refuse('POST', at('0/partial?from=0'), query(), 'bad_parameter')
      await refuse('POST', at('0/partial?from=1&to=0'), query(), 'bad_length')
      await refuse('POST', (id) => `/v1/sessions/${id}/truncate?length=1`, undefined, 'bad_length')
      await refuse('POST', (id) => `/v1/sessions/${id}/truncate`, undefined, 'bad_parameter')
      await refuse('POST', at('0/attend'), buildFrame([]), 'bad_body')
      await refuse('POST', at('0/attend'), buildFrame([{ ...queryTensor(seq, 0), shape: [16, 4] }]), 'bad_shape')
    })

    it('more tokens than a session holds', async () => {
      const alice = caller()
      const id = await alice.open({ capacity: 8 })
      await alice.append(id, seq, 0, 6)
      const over = buildFrame(rowTensors(seq, 6, 9))
      await expectProblem(await alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=6`, over), 'capacity')
      expect(await alice.lengths(id)).toEqual([6, 0])
      await alice.append(id, seq, 6, 8)
    })

    it('a step whose queries are refused appends nothing', async () => {
      const alice = caller()
      const id = await alice.open()
      await alice.append(id, seq, 0, 20)
      const queries = new Float32Array(64).fill(1e38)
      const body = buildFrame([...rowTensors(seq, 20, 21), { name: 'queries', shape: [4, 16], data: queries }])
      await expectProblem(await alice.send('POST', `/v1/sessions/${id}/layers/0/step?offset=20`, body), 'out_of_range')
      expect(await alice.lengths(id)).toEqual([20, 0])
      await alice.append(id, seq, 20, 22)
    })

    it('sessions that cannot be', async () => {
      const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 16, capacity: 64 }
      const cases: [unknown, ErrorCode][] = [
        [{}, 'bad_config'],
        [{ ...shape, headDim: 12 }, 'bad_head_dim'],
        [{ ...shape, layers: 1e9 }, 'bad_config'],
        [{ ...shape, capacity: -1 }, 'bad_config'],
        [{ ...shape, capacity: 1.5 }, 'bad_config'],
        [{ ...shape, kvHeads: 3 }, 'bad_config'],
        [{ ...shape, policy: { k: 0 } }, 'bad_k'],
        [{ ...shape, store: 'f8' }, 'bad_config'],
        [{ ...shape, unknown: 1 }, 'bad_config'],
        [{ ...shape, ttl: 0 }, 'bad_config'],
        [{ ...shape, ttl: -5 }, 'bad_config'],
        [{ ...shape, ttl: 1e12 }, 'bad_config'],
        [{ ...shape, ttl: '60' }, 'bad_config'],
        [[], 'bad_body'],
        ['text', 'bad_body'],
        [null, 'bad_body'],
      ]
      for (const [body, code] of cases)
        await expectProblem(await caller().send('POST', '/v1/sessions', JSON.stringify(body)), code)
      for (const body of [
        '',
        '{',
        `[${'{"a":'.repeat(9000)}1${'}'.repeat(9000)}]`,
        '['.repeat(30000) + ']'.repeat(30000),
        JSON.stringify(shape).replace('{', '{"layers":7,'),
        `{"policy":{"k":1,"\\u006b":2},${JSON.stringify(shape).slice(1)}`,
        '{"__proto__":{"layers":1}}',
        '\u0000',
        ' '.repeat(16),
      ])
        await expectProblem(await caller().send('POST', '/v1/sessions', body), 'bad_body')
      await expectProblem(await caller().send('POST', '/v1/sessions', ' '.repeat(70_000)), 'too_large')
      const huge = { layers: 1024, queryHeads: 1024, kvHeads: 1024, headDim: 256, capacity: 1 << 28 }
      await expectProblem(await caller().send('POST', '/v1/sessions', JSON.stringify(huge)), 'out_of_memory')
    })

    it('a body above the limit, chunked', async () => {
      const { limits } = (await caller().json('GET', '/v1/info')) as { limits: { body: number } }
      let left = limits.body + 2 ** 20
      const stream = new ReadableStream<Uint8Array>({
        pull(controller) {
          if (left <= 0) return controller.close()
          controller.enqueue(new Uint8Array(Math.min(left, 2 ** 20)))
          left -= 2 ** 20
        },
      })
      await refuse('PUT', kv, stream, 'too_large')
    })
  })
}
