import fc from 'fast-check'
import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import type { TensorInput } from '../../sdk/input.ts'
import type { RestoreOptions } from '../../sdk/session/restore.ts'
import { onEveryBackend } from '../support/backends.ts'
import { feed, options, refused, sequence, snapshotOf, streamOf } from '../support/sessions.ts'
import { headerOf, placeOf } from '../support/snapshots.ts'

onEveryBackend('restore', (backend, name) => {
  const seq = sequence(101, 120)
  const runs = name === 'webgpu' ? 15 : 60

  async function file(given?: 'bf16') {
    const session = await new Engine(backend()).createSession(
      options({ layers: 2, capacity: 128 }, { normWeighted: true }),
    )
    const none = { dtype: given ?? 'f32', data: given ? new Uint16Array(32) : new Float32Array(32) } as TensorInput
    await session.append(0, { keys: none, values: none })
    await session.truncate(0)
    await feed(session, seq, 0, 100)
    await feed(session, seq, 0, 40, 40, 1)
    const bytes = await snapshotOf(session)
    const { total } = session.memory()
    await session.dispose()
    return { bytes, total }
  }

  async function refuses(bytes: Uint8Array, given: RestoreOptions, ...codes: string[]) {
    const allocated = backend().allocated()
    const engine = new Engine(backend())
    const error = await engine.restore(streamOf(bytes), given).then(
      () => expect.fail('restored'),
      (caught) => caught,
    )
    expect(codes, String(error)).toContain(error.code)
    expect(backend().allocated()).toBe(allocated)
  }

  const flipped = (bytes: Uint8Array, bit: number) => {
    const copy = bytes.slice()
    copy[bit >> 3] ^= 1 << (bit & 7)
    return copy
  }

  it('refuses every truncation', async () => {
    const { bytes } = await file()
    const [data] = placeOf(bytes, 'layers.0.keys')
    const edges = Object.keys(headerOf(bytes)).flatMap((t) => (t === '__metadata__' ? [] : placeOf(bytes, t)))
    for (const at of [0, 1, 7, 8, 9, data - 1, ...edges.filter((e) => e < bytes.length), bytes.length - 1])
      await refuses(bytes.subarray(0, at), {}, 'snapshot_corrupt')
    const lengths = fc.integer({ min: 0, max: bytes.length - 1 })
    await fc.assert(
      fc.asyncProperty(lengths, (length) => refuses(bytes.subarray(0, length), {}, 'snapshot_corrupt')),
      { numRuns: runs },
    )
  })

  it('refuses any flipped bit of the data', async () => {
    const { bytes } = await file()
    for (const tensor of Object.keys(headerOf(bytes))) {
      if (tensor === '__metadata__') continue
      const [from, to] = placeOf(bytes, tensor)
      for (const bit of [from * 8, from * 8 + 7, from * 4 + to * 4, to * 8 - 1])
        await refuses(flipped(bytes, bit), {}, 'snapshot_corrupt')
    }
    const [data] = placeOf(bytes, 'layers.0.keys')
    const bits = fc.integer({ min: data * 8, max: bytes.length * 8 - 1 })
    await fc.assert(
      fc.asyncProperty(bits, (bit) => refuses(flipped(bytes, bit), {}, 'snapshot_corrupt')),
      { numRuns: runs },
    )
  })

  it('refuses any flipped bit of the header', async () => {
    const { bytes } = await file()
    const [data] = placeOf(bytes, 'layers.0.keys')
    const given = { maxBytes: 1 << 24 }
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 0, max: data * 8 - 1 }), (bit) =>
        refuses(flipped(bytes, bit), given, 'snapshot_corrupt', 'out_of_memory'),
      ),
      { numRuns: 2 * runs },
    )
  })

  it('refuses bytes behind the end, and what is no stream', async () => {
    const { bytes } = await file()
    await refuses(Uint8Array.of(...bytes, 0), {}, 'snapshot_corrupt')
    await refuses(Uint8Array.of(...bytes, ...bytes), {}, 'snapshot_corrupt')
    const engine = new Engine(backend())
    const texts = new ReadableStream<string>({
      start: (c) => c.enqueue('not bytes'),
    }) as unknown as ReadableStream<Uint8Array>
    await refused(engine.restore(texts), 'snapshot_corrupt')
    const busy = streamOf(bytes)
    busy.getReader()
    for (const nothing of [undefined, null, bytes, 'x', busy] as unknown as ReadableStream<Uint8Array>[])
      await refused(engine.restore(nothing), 'bad_dtype')
  })

  it('refuses another seed or shape than expected, and takes the right ones', async () => {
    const { bytes } = await file()
    const wrong = { seed: 43, layers: 1, headDim: 32, kvHeads: 4, queryHeads: 2, capacity: 1, scale: 1, store: 'bf16' }
    for (const [field, value] of Object.entries(wrong))
      await refuses(bytes, { expect: { [field]: value } }, 'snapshot_mismatch')
    const expected = {
      seed: 42,
      layers: 2,
      headDim: 16,
      kvHeads: 2,
      queryHeads: 4,
      capacity: 128,
      store: 'f32' as const,
    }
    const restored = await new Engine(backend()).restore(streamOf(bytes), { expect: expected })
    expect(restored.length()).toBe(100)
  })

  it('refuses what needs more bytes than allowed, counting the store that it has', async () => {
    for (const given of ['bf16', undefined] as const) {
      const { bytes, total } = await file(given)
      await refuses(bytes, { maxBytes: total - 1 }, 'out_of_memory')
      const restored = await new Engine(backend()).restore(streamOf(bytes), { maxBytes: total })
      expect(restored.memory().total).toBe(total)
    }
  })

  it('refuses a source that fails by itself, and says why', async () => {
    const { bytes } = await file()
    const allocated = backend().allocated()
    for (const cause of [new TypeError('terminated'), 'no error', undefined]) {
      let sent = false
      const failing = new ReadableStream<Uint8Array>({
        pull(controller) {
          if (sent) controller.error(cause)
          else controller.enqueue(bytes.slice(0, bytes.length - 100))
          sent = true
        },
      })
      const error = await refused(new Engine(backend()).restore(failing), 'snapshot_corrupt')
      expect(error.cause).toBe(cause)
    }
    const session = await new Engine(backend()).createSession(options())
    await feed(session, seq, 0, 100)
    const stale = session.snapshot()
    const restore = refused(new Engine(backend()).restore(stale), 'snapshot_stale')
    await session.truncate(3)
    await restore
    await session.dispose()
    expect(backend().allocated()).toBe(allocated)
  })

  it('stops when aborted, before, in the middle, and while its source stalls', async () => {
    const { bytes } = await file()
    const engine = new Engine(backend())
    const allocated = backend().allocated()
    const reason = new Error('enough')
    const untouched = streamOf(bytes)
    await refused(engine.restore(untouched, { signal: AbortSignal.abort(reason) }), 'aborted')
    const restored = await engine.restore(untouched)
    expect(restored.length()).toBe(100)
    await restored.dispose()
    const middle = new AbortController()
    const given = { signal: middle.signal, onProgress: () => middle.abort(reason) }
    const error = await refused(engine.restore(streamOf(bytes), given), 'aborted')
    expect([error.name, error.cause]).toEqual(['AbortError', reason])
    let cancelled: unknown
    const stalled = new ReadableStream<Uint8Array>({
      start: (controller) => controller.enqueue(bytes.slice(0, bytes.length - 100)),
      cancel: (why) => {
        cancelled = why
      },
    })
    const late = new AbortController()
    setTimeout(() => late.abort(reason), 30)
    await refused(engine.restore(stalled, { signal: late.signal }), 'aborted')
    expect(cancelled).toBe(reason)
    expect(backend().allocated()).toBe(allocated)
  })
})
