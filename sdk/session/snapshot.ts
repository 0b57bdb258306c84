import { sha256 } from '@noble/hashes/sha2.js'
import { bytesToHex } from '@noble/hashes/utils.js'
import type { Cache } from '../cache/cache.ts'
import { readPart } from '../cache/summary.ts'
import { type CallOptions, Pace } from '../calls.ts'
import { portableOptions } from '../config.ts'
import { ParisError } from '../errors.ts'
import { buildHeader } from '../safetensors.ts'
import { digestAt, NO_DIGEST, rowsAtOnce, type SnapshotTensor, snapshotTensors } from './snapshot-layout.ts'
import { disposedError, type SessionState } from './state.ts'

/** A session frozen for a snapshot: rows below its lengths do not change while it is not truncated. */
interface Capture {
  readonly cache: Cache | undefined
  readonly tensors: readonly SnapshotTensor[]
  readonly header: Uint8Array
  /** Norm bytes shift when later keys are longer, so they are copied at once. */
  readonly copies: ReadonlyMap<string, Uint8Array>
  readonly longest: number
  stale: boolean
  readonly bytes: number
}

/** See `Session.snapshot`. */
export function snapshotStream(state: SessionState, options: CallOptions): ReadableStream<Uint8Array> {
  if (state.disposed) throw disposedError('session.snapshot')
  const captured = state.queue.run(() => capture(state))
  captured.catch(() => {})
  const chunks = emit(state, captured, options)
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await chunks.next()
      if (done) controller.close()
      else controller.enqueue(value)
    },
    async cancel() {
      await chunks.return(undefined)
      // A generator that never started has no end to run.
      const snapshot = await captured.catch(() => undefined)
      if (snapshot) state.snapshots.delete(snapshot)
    },
  })
}

async function capture(state: SessionState): Promise<Capture> {
  const { cache, config } = state
  const lengths = state.lengths()
  for (const layer of lengths.keys()) await cache?.mend(layer)
  const store = cache?.store ?? config.store
  const tensors = store ? snapshotTensors(config, lengths, store) : []
  const header = buildHeader(tensors, {
    format: 'pariskv',
    version: '1',
    config: JSON.stringify(portableOptions(config)),
    lengths: JSON.stringify(lengths),
    store: store ?? '',
    sha256: NO_DIGEST,
  })
  const copies = new Map<string, Uint8Array>()
  for (const tensor of tensors)
    if (cache && (tensor.part === 'norms' || tensor.part === 'normExp'))
      copies.set(tensor.name, await readAll(cache, tensor))
  const bytes = tensors.reduce((sum, t) => sum + t.rows * t.rowBytes * config.shape.kvHeads, 0)
  const longest = Math.max(...lengths)
  const snapshot = { cache, tensors, header, copies, longest, stale: false, bytes }
  state.snapshots.add(snapshot)
  return snapshot
}

/** Reads everything twice: once for the digest, which stands in the header, once to hand it out. */
async function* emit(
  state: SessionState,
  captured: Promise<Capture>,
  options: CallOptions,
): AsyncGenerator<Uint8Array> {
  const snapshot = await captured
  try {
    yield* emitCaptured(state, snapshot, options)
  } finally {
    state.snapshots.delete(snapshot)
  }
}

async function* emitCaptured(state: SessionState, snapshot: Capture, options: CallOptions): AsyncGenerator<Uint8Array> {
  const pace = new Pace('session.snapshot', 2 * snapshot.bytes, 'bytes', options)
  const header = snapshot.header.slice()
  const hash = sha256.create().update(header)
  let done = 0
  for await (const chunk of dataOf(state, snapshot)) {
    hash.update(chunk)
    done += chunk.length
    await pace.step(done)
  }
  header.set(new TextEncoder().encode(bytesToHex(hash.digest())), digestAt(header))
  yield header
  for await (const chunk of dataOf(state, snapshot)) {
    done += chunk.length
    await pace.step(done)
    yield chunk
  }
}

async function* dataOf(state: SessionState, snapshot: Capture): AsyncGenerator<Uint8Array> {
  const { cache, tensors, copies } = snapshot
  if (!cache) return
  for (const tensor of tensors) {
    const copy = copies.get(tensor.name)
    if (copy) {
      if (copy.length > 0) yield copy
    } else
      for (let h = 0; h < state.config.shape.kvHeads; h++)
        for (let from = 0; from < tensor.rows; from += rowsAtOnce(tensor)) {
          checkFresh(state, snapshot)
          const to = Math.min(tensor.rows, from + rowsAtOnce(tensor))
          const chunk = await readRows(cache, tensor, h, from, to).catch((error) => {
            // Rows that a truncation has taken meanwhile cannot be read, in whatever way.
            checkFresh(state, snapshot)
            throw error
          })
          checkFresh(state, snapshot)
          yield chunk
        }
  }
}

/** @throws ParisError `snapshot_stale` */
function checkFresh(state: SessionState, snapshot: Capture): void {
  if (!snapshot.stale && !state.disposed) return
  throw new ParisError('snapshot_stale', {
    where: 'session.snapshot',
    got: state.disposed ? 'a dispose while the snapshot was read' : 'a truncation while the snapshot was read',
    want: 'the captured tokens to stay',
    fix: 'Read the stream to its end before truncating or disposing, or snapshot a fork.',
  })
}

/** Rows [from, to) of head h in canonical bytes. */
async function readRows(cache: Cache, t: SnapshotTensor, h: number, from: number, to: number): Promise<Uint8Array> {
  if (t.part === 'keys' || t.part === 'values') return cache.readRows(t.layer, t.part, h, from, to)
  return readPart(cache.backend, cache.layer(t.layer).summary, t.part, h, from, to - from)
}

async function readAll(cache: Cache, tensor: SnapshotTensor): Promise<Uint8Array> {
  const heads = cache.config.shape.kvHeads
  const { normExp } = cache.layer(tensor.layer).summary
  if (tensor.part === 'normExp' && normExp) return cache.backend.read(normExp, 0, heads * 4)
  const zone = tensor.rows
  if (zone === 0) return new Uint8Array(0)
  const parts = await Promise.all(Array.from({ length: heads }, (_, h) => readRows(cache, tensor, h, 0, zone)))
  const all = new Uint8Array(heads * zone)
  parts.forEach((part, h) => all.set(part, h * zone))
  return all
}
