import { sha256 } from '@noble/hashes/sha2.js'
import { bytesToHex } from '@noble/hashes/utils.js'
import type { Backend } from '../backend.ts'
import type { OpenPages } from '../cache/pages.ts'
import { type CallOptions, Pace } from '../calls.ts'
import { configOptions, type Placement, parseConfig, type SessionConfig, type SessionOptions } from '../config.ts'
import type { Dtype } from '../dtype.ts'
import { describe, ParisError, throwIfAborted } from '../errors.ts'
import { headerBytes, parseHeader, type TensorHeader } from '../safetensors.ts'
import { ByteReader } from './byte-reader.ts'
import { CacheFill } from './cache-fill.ts'
import { checkState } from './check.ts'
import { placementOf } from './placement.ts'
import { digestAt, NO_DIGEST, type SnapshotTensor, snapshotTensors } from './snapshot-layout.ts'
import { SessionState } from './state.ts'

const WHERE = 'engine.restore'
const MAX_SNAPSHOT_HEADER = 2 ** 22

/** What `restore` takes beside the stream. */
export interface RestoreOptions extends CallOptions {
  /** Fields that the snapshot's configuration must have; any that differs refuses it. */
  readonly expect?: Partial<Omit<SessionOptions, 'policy'>>
  /** Refuses a snapshot whose session would take more bytes, the host's pages included. */
  readonly maxBytes?: number
  /** Where the session's rows are to live here: the fields of a policy that a snapshot does not carry. */
  readonly placement?: Placement
}

/**
 * Reads a snapshot into a new session state. Nothing is left behind when it is refused.
 * @throws ParisError `snapshot_corrupt` (truncated, a flipped bit, sizes that do not fit), `snapshot_mismatch` (another
 * shape or seed than expected, codes that are not the keys'), `bad_config` for a placement that says anything else,
 * `out_of_memory`, `aborted`
 */
export async function restoreState(
  backend: Backend,
  stream: ReadableStream<Uint8Array>,
  options: RestoreOptions,
  pages: OpenPages,
  admit: (config: SessionConfig) => void,
): Promise<SessionState> {
  const { signal } = options
  throwIfAborted(signal, WHERE)
  const reader = new ByteReader(checkStream(stream), WHERE)
  // A source that has stalled must not hold up an abort.
  const stop = () => void reader.cancel(signal?.reason)
  signal?.addEventListener('abort', stop)
  const hash = sha256.create()
  let state: SessionState | undefined
  try {
    const { header, digest, raw } = await readHeader(reader)
    const { config: portable, lengths, store } = describeSnapshot(header)
    const config = placed(portable, options.placement)
    checkExpected({ ...config, store }, options.expect)
    const tensors = store ? snapshotTensors(config, lengths, store) : []
    checkTensors(header, tensors)
    admit({ ...config, store })
    hash.update(raw)
    state = new SessionState(backend, config, pages)
    const pace = new Pace(WHERE, header.dataBytes, 'bytes', options)
    if (store) {
      const filling = new CacheFill(await state.open(store))
      await filling.run(tensors, pace, async (count) => {
        const bytes = await reader.take(count)
        hash.update(bytes)
        return bytes
      })
      await filling.finish(lengths)
    }
    await reader.end()
    if (bytesToHex(hash.digest()) !== digest)
      throw corrupt('other bytes than its sha256 says', 'the bytes that were written')
    await verifyCodes(state)
    return state
  } catch (error) {
    await state?.dispose()
    await reader.cancel(error)
    throwIfAborted(signal, WHERE)
    throw error
  } finally {
    signal?.removeEventListener('abort', stop)
  }
}

function checkStream(stream: ReadableStream<Uint8Array>): ReadableStream<Uint8Array> {
  const streams = typeof (stream as { getReader?: unknown } | undefined)?.getReader === 'function'
  if (streams && !stream.locked) return stream
  throw new ParisError('bad_dtype', {
    where: `${WHERE}(stream)`,
    got: streams ? 'a stream that is being read already' : describe(stream),
    want: 'a ReadableStream of Uint8Array that nobody reads',
    fix: 'Hand in session.snapshot(), response.body or Readable.toWeb(file) itself.',
  })
}

/** The header, its digest, and its bytes with the digest's digits as zeros. */
async function readHeader(reader: ByteReader) {
  const size = await reader.take(8)
  const json = await reader.take(headerBytes(size, MAX_SNAPSHOT_HEADER, WHERE))
  const header = parseHeader(json, WHERE)
  const raw = new Uint8Array(8 + json.length)
  raw.set(size)
  raw.set(json, 8)
  const digest = header.metadata.get('sha256') ?? ''
  const at = digestAt(raw)
  const written = at < 0 ? '' : new TextDecoder().decode(raw.subarray(at, at + 64))
  if (!/^[0-9a-f]{64}$/.test(digest) || written !== digest) throw corrupt('no sha256 in the header', '64 digits')
  raw.set(new TextEncoder().encode(NO_DIGEST), at)
  return { header, digest, raw }
}

function describeSnapshot(header: TensorHeader): {
  config: SessionConfig
  lengths: number[]
  store: Dtype | undefined
} {
  const text = (key: string) => header.metadata.get(key) ?? ''
  if (text('format') !== 'pariskv' || text('version') !== '1') {
    throw corrupt(
      `format ${JSON.stringify(text('format'))} version ${JSON.stringify(text('version'))}`,
      'pariskv version 1',
    )
  }
  try {
    const config = parseConfig(JSON.parse(text('config')) as SessionOptions, WHERE)
    const lengths = JSON.parse(text('lengths')) as unknown
    const valid = (n: unknown) => Number.isInteger(n) && (n as number) >= 0 && (n as number) <= config.capacity
    if (!Array.isArray(lengths) || lengths.length !== config.shape.layers || !lengths.every(valid))
      throw new Error('lengths')
    const store = text('store')
    if (!['', 'f32', 'f16', 'bf16'].includes(store)) throw new Error('store')
    if (store === '' ? config.store || lengths.some((n) => n > 0) : config.store && config.store !== store)
      throw new Error('store')
    return { config, lengths: lengths as number[], store: store === '' ? undefined : (store as Dtype) }
  } catch (cause) {
    throw corrupt('metadata that describes no session', 'config, lengths and store as written', cause)
  }
}

/** @throws ParisError `bad_config` */
function placed(config: SessionConfig, placement: Placement = {}): SessionConfig {
  const fields = placementOf()
  const other = isObject(placement) ? Object.keys(placement).find((field) => !(field in fields)) : describe(placement)
  if (other !== undefined)
    throw new ParisError('bad_config', {
      where: `${WHERE}(placement)`,
      got: isObject(placement) ? `the field ${JSON.stringify(other)}` : other,
      want: Object.keys(fields).join(', '),
      fix: 'Leave placement out, or give fields that say where rows live; the others are the snapshot’s.',
    })
  const options = configOptions(config)
  return parseConfig({ ...options, policy: { ...options.policy, ...fields, ...placement } }, WHERE)
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function checkExpected(config: SessionConfig, expect: RestoreOptions['expect']): void {
  const { layers, queryHeads, kvHeads, headDim } = config.shape
  const have: Record<string, unknown> = { ...config, layers, queryHeads, kvHeads, headDim }
  for (const [field, want] of Object.entries(expect ?? {})) {
    if (want === undefined || have[field] === want) continue
    throw mismatch(`${field} ${String(have[field])}`, `${field} ${String(want)}`)
  }
}

/** Names, dtypes, shapes and the order of the data must be those that a session of this configuration writes. */
function checkTensors(header: TensorHeader, tensors: readonly SnapshotTensor[]): void {
  let at = 0
  const fits = tensors.every(({ name, dtype, shape }) => {
    const entry = header.tensors.get(name)
    if (entry?.dtype !== dtype || entry.shape.join() !== shape.join() || entry.start !== at) return false
    at = entry.end
    return true
  })
  if (fits && header.tensors.size === tensors.length) return
  throw corrupt(
    'tensors that do not fit its configuration',
    tensors
      .map((t) => t.name)
      .join(', ')
      .slice(0, 200),
  )
}

async function verifyCodes(state: SessionState): Promise<void> {
  const { ok, problems } = await checkState(state)
  if (!ok) throw mismatch(problems[0], 'codes of its own keys under its own seed')
}

function corrupt(got: string, want: string, cause?: unknown): ParisError {
  return new ParisError('snapshot_corrupt', {
    where: WHERE,
    got,
    want,
    fix: 'Write the snapshot again, or copy it again.',
    cause,
  })
}

function mismatch(got: string, want: string): ParisError {
  const fix = 'Restore the snapshot of the session that you expect, with the seed that it was made with.'
  return new ParisError('snapshot_mismatch', { where: WHERE, got, want, fix })
}
