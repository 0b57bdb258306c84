import { ParisError } from './errors.ts'

/** Element types that this package reads and writes, with their bytes. */
export const TENSOR_BYTES = { F32: 4, F16: 2, BF16: 2, I32: 4, U32: 4, I8: 1, U8: 1 } as const
export type TensorDtype = keyof typeof TENSOR_BYTES

/** Element types that a model's file may hold beside those that are read, with their bytes. */
export const STORED_BYTES = {
  ...TENSOR_BYTES,
  ...{ F64: 8, I64: 8, U64: 8, I16: 2, U16: 2, BOOL: 1, F8_E4M3: 1, F8_E5M2: 1, F8_E8M0: 1, C64: 8 },
} as const
export type StoredDtype = keyof typeof STORED_BYTES

/** One tensor of a safetensors header; offsets are bytes after the header. */
export interface TensorEntry<D extends string = TensorDtype> {
  readonly dtype: D
  readonly shape: readonly number[]
  readonly start: number
  readonly end: number
}

/** A checked safetensors header. */
export interface TensorHeader<D extends string = TensorDtype> {
  /** In the order of their data. */
  readonly tensors: ReadonlyMap<string, TensorEntry<D>>
  readonly metadata: ReadonlyMap<string, string>
  /** Bytes before the data: 8 and the JSON. */
  readonly dataStart: number
  /** Bytes of data. */
  readonly dataBytes: number
}

/** The header's own limit unless the caller gives another. */
export const MAX_HEADER = 64 * 1024 * 1024

/**
 * Bytes of the JSON part, from the file's first 8 bytes (u64, little-endian).
 * @throws ParisError `snapshot_corrupt` when there are fewer than 8 bytes, or the size is below 2 or above `limit`
 */
export function headerBytes(first8: Uint8Array, limit = MAX_HEADER, where = 'safetensors'): number {
  if (first8.byteLength < 8) throw corrupt(where, `${first8.byteLength} bytes`, 'at least 8 bytes')
  const size = new DataView(first8.buffer, first8.byteOffset, 8).getBigUint64(0, true)
  if (size < 2n || size > BigInt(limit)) throw corrupt(where, `a header of ${size} bytes`, `2 to ${limit} bytes`)
  return Number(size)
}

/**
 * Parses and checks the JSON part: known dtypes, whole non-negative dimensions whose product stays below 2^53,
 * offsets that tile the data without hole or overlap, no duplicate or `__proto__` name.
 * @param dtypes those that are taken, with the bytes of an element
 * @throws ParisError `snapshot_corrupt`
 */
export function parseHeader<D extends string>(
  json: Uint8Array,
  where: string,
  dtypes: Readonly<Record<D, number>>,
): TensorHeader<D>
export function parseHeader(json: Uint8Array, where?: string): TensorHeader
export function parseHeader(
  json: Uint8Array,
  where = 'safetensors',
  dtypes: Readonly<Record<string, number>> = TENSOR_BYTES,
): TensorHeader<string> {
  let text: string
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(json)
  } catch {
    throw corrupt(where, 'a header that is not UTF-8', 'UTF-8 JSON')
  }
  const root = parseStrict(text, where)
  const metadata = new Map<string, string>()
  const entries: [string, TensorEntry<string>][] = []
  for (const [name, value] of root) {
    const said = quote(name)
    if (name === '__metadata__')
      for (const [k, v] of asMap(value, where, said)) metadata.set(k, asString(v, where, quote(k)))
    else entries.push([name, tensorEntry(asMap(value, where, said), where, said, dtypes)])
  }
  entries.sort((a, b) => a[1].start - b[1].start || a[1].end - b[1].end)
  let end = 0
  for (const [name, entry] of entries) {
    if (entry.start !== end) throw corrupt(where, `${quote(name)} at ${entry.start}`, `${end}: no hole and no overlap`)
    end = entry.end
  }
  return { tensors: new Map(entries), metadata, dataStart: 8 + json.byteLength, dataBytes: end }
}

type Json = string | number | boolean | null | Json[] | Map<string, Json>

/** JSON with objects as maps, so that no name means more than itself. */
function parseStrict(text: string, where: string): Map<string, Json> {
  try {
    scan(text, where)
    return asMap(toMaps(JSON.parse(text)), where, 'header')
  } catch (cause) {
    if (cause instanceof ParisError) throw cause
    throw corrupt(where, 'a header that is not JSON', 'a JSON object', cause)
  }
}

function toMaps(value: unknown): Json {
  if (Array.isArray(value)) return value.map(toMaps)
  if (value !== null && typeof value === 'object') return new Map(Object.entries(value).map(([k, v]) => [k, toMaps(v)]))
  return value as Json
}

const MAX_DEPTH = 8

/**
 * Refuses what `JSON.parse` would take: a name given twice in one object, `__proto__`, and nesting that would exhaust
 * a stack. Whether the text is JSON at all is left to `JSON.parse`.
 */
function scan(text: string, where: string): void {
  const open: Set<string>[] = []
  for (let i = 0; i < text.length; i++) {
    const c = text[i]
    if (c === '{' || c === '[') open.push(new Set())
    else if (c === '}' || c === ']') open.pop()
    else if (c === '"') {
      const start = i++
      while (i < text.length && text[i] !== '"') i += text[i] === '\\' ? 2 : 1
      let next = i + 1
      while (next < text.length && ' \t\n\r'.includes(text[next])) next++
      if (text[next] === ':') addName(JSON.parse(text.slice(start, i + 1)) as string, open.at(-1), where)
    }
    if (open.length > MAX_DEPTH) throw corrupt(where, `a header nested deeper than ${MAX_DEPTH}`, 'a flat header')
  }
}

function addName(name: string, names: Set<string> | undefined, where: string): void {
  if (name === '__proto__') throw corrupt(where, 'the name "__proto__"', 'another name')
  if (names?.has(name)) throw corrupt(where, `the name ${quote(name)} twice`, 'each name once')
  names?.add(name)
}

/** A name from the file as a message can hold it. */
function quote(name: string): string {
  return JSON.stringify(name.length > 60 ? `${name.slice(0, 60)}…` : name)
}

function tensorEntry(
  map: Map<string, Json>,
  where: string,
  name: string,
  dtypes: Readonly<Record<string, number>>,
): TensorEntry<string> {
  const dtype = map.get('dtype')
  if (typeof dtype !== 'string' || !Object.hasOwn(dtypes, dtype)) {
    const got = typeof dtype === 'string' ? quote(dtype) : 'no name'
    throw corrupt(where, `${name} of dtype ${got}`, Object.keys(dtypes).join(', '))
  }
  const shape = map.get('shape')
  if (!Array.isArray(shape) || !shape.every(isSize)) throw corrupt(where, `the shape of ${name}`, 'whole sizes ≥ 0')
  const offsets = map.get('data_offsets')
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(isSize)) {
    throw corrupt(where, `the offsets of ${name}`, 'two whole numbers ≥ 0')
  }
  const [start, end] = offsets as number[]
  let bytes = dtypes[dtype]
  for (const size of shape as number[]) {
    bytes *= size
    if (bytes > Number.MAX_SAFE_INTEGER) throw corrupt(where, `${name} of more than 2^53 bytes`, 'a size that fits')
  }
  if (end - start !== bytes) throw corrupt(where, `${name} of ${end - start} bytes`, `${bytes} for its shape`)
  return { dtype, shape: shape as number[], start, end }
}

function isSize(value: Json): boolean {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0
}

function asMap(value: Json, where: string, name: string): Map<string, Json> {
  if (value instanceof Map) return value
  throw corrupt(where, `${name} that is not an object`, 'a JSON object')
}

function asString(value: Json, where: string, name: string): string {
  if (typeof value === 'string') return value
  throw corrupt(where, `metadata ${name} that is not a string`, 'strings')
}

function corrupt(where: string, got: string, want: string, cause?: unknown): ParisError {
  return new ParisError('snapshot_corrupt', { where, got, want, fix: 'Take the file from its source again.', cause })
}

/**
 * The 8 size bytes and the JSON of a header, padded with spaces to a multiple of 8, tensors laid out in the order given.
 */
export function buildHeader(
  tensors: ReadonlyArray<{ name: string; dtype: TensorDtype; shape: readonly number[] }>,
  metadata: Readonly<Record<string, string>>,
): Uint8Array {
  const root: Record<string, unknown> = { __metadata__: metadata }
  let at = 0
  for (const { name, dtype, shape } of tensors) {
    const bytes = shape.reduce((product, size) => product * size, TENSOR_BYTES[dtype])
    root[name] = { dtype, shape, data_offsets: [at, at + bytes] }
    at += bytes
  }
  const json = new TextEncoder().encode(JSON.stringify(root))
  const out = new Uint8Array(8 + Math.ceil(json.length / 8) * 8).fill(32)
  new DataView(out.buffer).setBigUint64(0, BigInt(out.length - 8), true)
  out.set(json, 8)
  return out
}
