import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { ParisError } from '../sdk/errors.ts'
import { buildHeader, headerBytes, MAX_HEADER, parseHeader, type TensorDtype } from '../sdk/safetensors.ts'

const utf8 = (text: string) => new TextEncoder().encode(text)
const parse = (header: unknown) => parseHeader(utf8(typeof header === 'string' ? header : JSON.stringify(header)))
const tensor = (dtype: unknown, shape: unknown, start: unknown, end: unknown) => ({
  dtype,
  shape,
  data_offsets: [start, end],
})

/** Expects `snapshot_corrupt` whose message names what is wrong. */
function refuses(run: () => unknown, what: RegExp | string): void {
  try {
    run()
  } catch (error) {
    expect(error).toBeInstanceOf(ParisError)
    expect(error).toMatchObject({ code: 'snapshot_corrupt', message: expect.stringMatching(what) })
    expect((error as ParisError).message.length).toBeLessThan(400)
    return
  }
  expect.fail('was accepted')
}

describe('the size of a header', () => {
  const first8 = (size: bigint) => new Uint8Array(new BigUint64Array([size]).buffer)

  it('is a u64, little-endian', () => {
    expect(headerBytes(Uint8Array.from([0x10, 1, 0, 0, 0, 0, 0, 0, 99]))).toBe(272)
    expect(headerBytes(first8(2n))).toBe(2)
    expect(headerBytes(first8(BigInt(MAX_HEADER)))).toBe(MAX_HEADER)
  })

  it('is read from a view that starts inside a buffer', () => {
    const buffer = new Uint8Array(20)
    buffer[7] = 40
    expect(headerBytes(buffer.subarray(7))).toBe(40)
  })

  it.each([0n, 1n, BigInt(MAX_HEADER) + 1n, 2n ** 53n, 2n ** 63n, 2n ** 64n - 1n])('is refused at %s', (size) => {
    refuses(() => headerBytes(first8(size)), 'a header of')
  })

  it('is refused beyond the limit of the caller, and where bytes lack', () => {
    refuses(() => headerBytes(first8(65_537n), 65_536), '2 to 65536')
    for (const bytes of [0, 1, 7]) refuses(() => headerBytes(new Uint8Array(bytes)), `got ${bytes} bytes`)
  })
})

describe('a good header', () => {
  it('comes back from what was built', () => {
    const tensors: { name: string; dtype: TensorDtype; shape: number[] }[] = [
      { name: 'keys', dtype: 'BF16', shape: [2, 3, 8] },
      { name: 'empty', dtype: 'F32', shape: [0, 5] },
      { name: 'scalar', dtype: 'U8', shape: [] },
      { name: 'näme "quoted" \\ :', dtype: 'I32', shape: [7] },
    ]
    const metadata = { note: 'ü "x": {', constructor: 'a' }
    const built = buildHeader(tensors, metadata)
    expect(built.length % 8).toBe(0)
    const size = headerBytes(built)
    expect(size).toBe(built.length - 8)
    const header = parseHeader(built.subarray(8))
    expect([...header.tensors.keys()]).toEqual(tensors.map(({ name }) => name))
    expect(header.tensors.get('keys')).toEqual({ dtype: 'BF16', shape: [2, 3, 8], start: 0, end: 96 })
    expect(header.tensors.get('empty')).toEqual({ dtype: 'F32', shape: [0, 5], start: 96, end: 96 })
    expect(Object.fromEntries(header.metadata)).toEqual(metadata)
    expect([header.dataStart, header.dataBytes]).toEqual([built.length, 96 + 1 + 28])
  })

  it('may list its tensors in any order', () => {
    const header = parse({ b: tensor('F32', [1], 4, 8), a: tensor('F32', [1], 0, 4) })
    expect([...header.tensors.keys()]).toEqual(['a', 'b'])
  })

  it('may repeat a name in another object, and be empty', () => {
    const header = parse({ dtype: tensor('U8', [1], 0, 1), __metadata__: { dtype: 'x', shape: 'y', a: 'a' } })
    expect([...header.metadata.keys()]).toEqual(['dtype', 'shape', 'a'])
    expect(parse('{}').dataBytes).toBe(0)
    expect(parse('{}   ').dataBytes).toBe(0)
  })

  it('may hold long metadata', () => {
    const long = 'x\\"'.repeat(1_000_000)
    expect(parse({ __metadata__: { long } }).metadata.get('long')).toBe(long)
  })
})

describe('a bad header is refused:', () => {
  const bad: Record<string, [header: unknown, message: string]> = {
    'no JSON': ['{', 'not JSON'],
    nothing: ['', 'not JSON'],
    'a cut string': ['{"a', 'not JSON'],
    'a cut escape': ['{"a\\', 'not JSON'],
    'a name alone': ['"a":1', 'not JSON'],
    'something after it': ['{}x', 'not JSON'],
    'a comment': ['{/**/}', 'not JSON'],
    'a byte order mark': ['\ufeff{}', 'not JSON'],
    'an array': ['[]', 'not an object'],
    null: ['null', 'not an object'],
    'a string': ['"x"', 'not an object'],
    'a tensor that is no object': [{ a: 1 }, '"a" that is not an object'],
    'a tensor that is its own name': [{ a: 'a' }, '"a" that is not an object'],
    'metadata that is no object': [{ __metadata__: ['x'] }, 'not an object'],
    'metadata that is no string': [{ __metadata__: { a: 1 } }, 'not a string'],
    'nested metadata': [{ __metadata__: { a: {} } }, 'not a string'],
    'no dtype': [{ a: { shape: [1], data_offsets: [0, 4] } }, 'dtype'],
    'an unknown dtype': [{ a: tensor('F64', [1], 0, 8) }, 'dtype "F64"'],
    'a dtype in small letters': [{ a: tensor('f32', [1], 0, 4) }, 'dtype "f32"'],
    'a dtype of every object': [{ a: tensor('toString', [1], 0, 4) }, 'dtype "toString"'],
    'a dtype that is no string': [{ a: tensor(['F32'], [1], 0, 4) }, 'dtype no name'],
    'no shape': [{ a: { dtype: 'F32', data_offsets: [0, 4] } }, 'shape'],
    'a shape that is a number': [{ a: tensor('F32', 1, 0, 4) }, 'shape'],
    'a negative dimension': [{ a: tensor('F32', [-1], 0, 4) }, 'shape'],
    'two negative dimensions': [{ a: tensor('F32', [-1, -1], 0, 4) }, 'shape'],
    'a fractional dimension': [{ a: tensor('F32', [0.5, 2], 0, 4) }, 'shape'],
    'a dimension as text': [{ a: tensor('F32', ['1'], 0, 4) }, 'shape'],
    'a dimension of null': [{ a: tensor('F32', [null], 0, 0) }, 'shape'],
    'a dimension beyond 2^53': [{ a: tensor('F32', [2 ** 53], 0, 4) }, 'shape'],
    'an infinite dimension': ['{"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,4]}}', 'shape'],
    'a product beyond 2^53': [{ a: tensor('U8', [2 ** 27, 2 ** 27], 0, 4) }, '2\\^53'],
    'a product that wraps 64 bits to 0': [{ a: tensor('U8', [2 ** 32, 2 ** 32], 0, 0) }, '2\\^53'],
    'a product that would be infinite': [{ a: tensor('U8', new Array(30).fill(2 ** 40), 0, 0) }, '2\\^53'],
    'a size beyond 2^53 with its dtype': [{ a: tensor('F32', [2 ** 52], 0, 2 ** 53 - 1) }, '2\\^53'],
    'one offset': [{ a: { dtype: 'U8', shape: [1], data_offsets: [0] } }, 'offsets'],
    'three offsets': [{ a: { dtype: 'U8', shape: [1], data_offsets: [0, 1, 2] } }, 'offsets'],
    'a negative offset': [{ a: tensor('U8', [1], -1, 0) }, 'offsets'],
    'a fractional offset': [{ a: tensor('U8', [1], 0.5, 1.5) }, 'offsets'],
    'reversed offsets': [{ a: tensor('U8', [4], 4, 0) }, '4 for its shape'],
    'a size that is not that of its shape': [{ a: tensor('F32', [2], 0, 4) }, '8 for its shape'],
    'a hole at the start': [{ a: tensor('U8', [1], 1, 2) }, 'no hole'],
    'a hole': [{ a: tensor('U8', [1], 0, 1), b: tensor('U8', [1], 2, 3) }, 'no hole'],
    'an overlap': [{ a: tensor('U8', [4], 0, 4), b: tensor('U8', [4], 2, 6) }, 'no hole'],
    'the same bytes twice': [{ a: tensor('U8', [4], 0, 4), b: tensor('U8', [4], 0, 4) }, 'no hole'],
    'a name twice': ['{"a":{},"a":{}}', 'the name "a" twice'],
    'a name twice, once escaped': ['{"a":{},"\\u0061" :{}}', 'the name "a" twice'],
    'a name twice in a tensor': [
      '{"a":{"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,1]}}',
      'the name "shape" twice',
    ],
    'a name twice in metadata': ['{"__metadata__":{"sha256":"0","sha256":"1"}}', 'the name "sha256" twice'],
    'metadata twice': ['{"__metadata__":{},"__metadata__":{}}', 'the name "__metadata__" twice'],
    __proto__: ['{"__proto__":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', '__proto__'],
    '__proto__ escaped': ['{"\\u005f_proto__":{}}', '__proto__'],
    '__proto__ in a tensor': ['{"a":{"__proto__":{"dtype":"U8"},"shape":[],"data_offsets":[0,1]}}', '__proto__'],
    '__proto__ in metadata': ['{"__metadata__":{"__proto__":"x"}}', '__proto__'],
    'deep nesting': [`{"a":${'['.repeat(20)}${']'.repeat(20)}}`, 'nested deeper'],
    'very deep nesting': ['['.repeat(5_000_000), 'nested deeper'],
    'very deep objects': ['{"a":'.repeat(1_000_000), 'nested deeper'],
    'a long bad name': [{ ['x'.repeat(100_000)]: 1 }, 'xxx…" that is not an object'],
  }

  it.each(Object.entries(bad))('%s', (_, [header, message]) => {
    refuses(() => parse(header), message)
  })

  it('bytes that are not UTF-8', () => {
    for (const bytes of [[0xff], [0xc0, 0x80], [0xed, 0xa0, 0x80], [0xf4, 0x90, 0x80, 0x80], [0xe2, 0x82]])
      refuses(() => parseHeader(Uint8Array.from([...utf8('{"a'), ...bytes, ...utf8('":1}')])), 'not UTF-8')
  })
})

describe('whatever is wrong', () => {
  const good = buildHeader(
    [
      { name: 'keys', dtype: 'BF16', shape: [2, 30, 8] },
      { name: 'scale', dtype: 'F32', shape: [2] },
    ],
    { sha256: '0'.repeat(64) },
  ).subarray(8)

  /** Parses, and checks what an accepted header promises. */
  function tryParse(bytes: Uint8Array): void {
    try {
      const { tensors, dataBytes } = parseHeader(bytes)
      let end = 0
      for (const { start, end: next } of tensors.values()) {
        expect(start).toBe(end)
        end = next
      }
      expect(dataBytes).toBe(end)
    } catch (error) {
      if (!(error instanceof ParisError)) throw error
      expect(error.code).toBe('snapshot_corrupt')
    }
  }

  it('a cut anywhere is refused', () => {
    const end = new TextDecoder().decode(good).lastIndexOf('}')
    for (let size = 0; size <= end; size++) refuses(() => parseHeader(good.subarray(0, size)), '')
  })

  it('changed bytes are refused or harmless', () => {
    const change = fc.tuple(fc.nat(good.length - 1), fc.nat(255))
    fc.assert(
      fc.property(fc.array(change, { minLength: 1, maxLength: 4 }), (changes) => {
        const bytes = Uint8Array.from(good)
        for (const [at, value] of changes) bytes[at] = value
        tryParse(bytes)
      }),
      { numRuns: 3000 },
    )
  })

  it('any JSON and any text is refused or harmless', () => {
    fc.assert(
      fc.property(fc.json(), (text) => tryParse(utf8(text))),
      { numRuns: 300 },
    )
    fc.assert(fc.property(fc.uint8Array({ maxLength: 60 }), tryParse), { numRuns: 300 })
    const part = fc.constantFrom('{', '}', '[', ']', '"', ':', ',', '\\', 'dtype', 'shape', '1', '-', 'e9', ' ')
    const soup = fc.array(part, { maxLength: 30 }).map((parts) => parts.join(''))
    fc.assert(
      fc.property(soup, (text) => tryParse(utf8(text))),
      { numRuns: 2000 },
    )
  })

  it('any values in the place of the right ones are refused or harmless', () => {
    const value = fc.oneof(fc.jsonValue(), fc.constantFrom('F32', 'U8', 0, 1, 4, -1, 2 ** 53, [0, 4], [1], []))
    const entry = fc.record({ dtype: value, shape: value, data_offsets: value }, { requiredKeys: [] })
    const header = fc.dictionary(fc.constantFrom('a', 'b', '__metadata__'), fc.oneof(entry, value))
    fc.assert(
      fc.property(header, (root) => tryParse(utf8(JSON.stringify(root)))),
      { numRuns: 500 },
    )
  })
})
