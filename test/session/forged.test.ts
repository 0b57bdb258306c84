import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import type { ErrorCode } from '../../sdk/errors.ts'
import { onEveryBackend } from '../support/backends.ts'
import { feed, options, refused, sequence, snapshotOf, streamOf } from '../support/sessions.ts'
import { placeOf, reconfigured, rewritten, type TensorEntry } from '../support/snapshots.ts'

onEveryBackend('forged snapshots', (backend) => {
  const seq = sequence(111, 100)
  const file = async (n = 100, store?: 'f32') => {
    const session = await new Engine(backend()).createSession(options({ layers: 2, capacity: 128, store }))
    await feed(session, seq, 0, n)
    const bytes = await snapshotOf(session)
    await session.dispose()
    return bytes
  }

  async function refuses(bytes: Uint8Array, code: ErrorCode, maxBytes = 1 << 28) {
    const allocated = backend().allocated()
    const error = await refused(new Engine(backend()).restore(streamOf(bytes), { maxBytes }), code)
    expect(backend().allocated()).toBe(allocated)
    return error
  }

  it('restore when nothing was changed', async () => {
    const bytes = rewritten(await file(), () => {})
    expect((await new Engine(backend()).restore(streamOf(bytes))).length()).toBe(100)
  })

  it('are refused with another seed, once there are codes', async () => {
    const reseed = (bytes: Uint8Array) => reconfigured(bytes, (config) => Object.assign(config, { seed: 43 }))
    await refuses(reseed(await file()), 'snapshot_mismatch')
    const short = await new Engine(backend()).restore(streamOf(reseed(await file(15))))
    expect(short.config.seed).toBe(43)
  })

  it.each([
    ['keys and values exchanged', 'layers.0.keys', 'layers.0.values'],
    ['weights where the signs belong', 'layers.0.signs', 'layers.0.weights'],
  ])('are refused with %s', async (_, one, other) => {
    const bytes = await file()
    const [[a, end], [b]] = [placeOf(bytes, one), placeOf(bytes, other)]
    const start = placeOf(bytes, 'layers.0.keys')[0]
    const swapped = rewritten(bytes, (_header, data) => {
      const first = data.slice(a - start, end - start)
      data.copyWithin(a - start, b - start, b - start + end - a)
      data.set(first, b - start)
    })
    await refuses(swapped, 'snapshot_mismatch')
    const renamed = rewritten(bytes, (header) => {
      ;[header[one], header[other]] = [header[other], header[one]]
    })
    await refuses(renamed, 'snapshot_corrupt')
  })

  it('are refused with sizes that overflow or do not fit', async () => {
    const bytes = await file()
    const keys = (change: Partial<TensorEntry>) =>
      rewritten(bytes, (header) => Object.assign(header['layers.0.keys'], change))
    for (const shape of [
      [2 ** 30, 2 ** 30, 2 ** 30],
      [2, 2 ** 53, 16],
      [2, 100.5, 16],
      [2, -100, 16],
      [2, 99, 16],
      [2, 16, 100],
      [3200],
    ])
      await refuses(keys({ shape }), 'snapshot_corrupt')
    await refuses(keys({ data_offsets: [0, 2 ** 53] }), 'snapshot_corrupt')
    await refuses(keys({ data_offsets: [12800, 0] }), 'snapshot_corrupt')
    await refuses(keys({ data_offsets: [4, 12804] }), 'snapshot_corrupt')
    await refuses(keys({ dtype: 'I32' }), 'snapshot_corrupt')
    const huge = bytes.slice()
    for (const size of [2n ** 63n, 2n ** 40n, 0n, 1n]) {
      new DataView(huge.buffer).setBigUint64(0, size, true)
      await refuses(huge, 'snapshot_corrupt')
    }
  })

  it('are refused with lengths, stores or configurations that lie', async () => {
    const bytes = await file()
    const metadata = (change: Record<string, string>, of = bytes) =>
      rewritten(of, ({ __metadata__ }) => Object.assign(__metadata__, change))
    for (const lengths of ['[100]', '[100,129]', '[100,-1]', '[100,0.5]', '[100,null]', '7', '', '[99,0]', '[0,100]'])
      await refuses(metadata({ lengths }), 'snapshot_corrupt')
    for (const store of ['f64', 'bf16', '']) await refuses(metadata({ store }), 'snapshot_corrupt')
    await refuses(metadata({ version: '2' }), 'snapshot_corrupt')
    await refuses(metadata({ format: 'pt' }), 'snapshot_corrupt')
    await refuses(metadata({ config: '{' }), 'snapshot_corrupt')
    await refuses(metadata({ config: 'null' }), 'snapshot_corrupt')
    await refuses(
      reconfigured(bytes, (config) => Object.assign(config, { extra: 1 })),
      'snapshot_corrupt',
    )
    await refuses(
      reconfigured(bytes, (config) => Object.assign(config, { store: 'f16' })),
      'snapshot_corrupt',
    )
    const empty = await file(0)
    await refuses(metadata({ lengths: '[3,0]' }, empty), 'snapshot_corrupt')
    await refuses(metadata({ store: '' }, await file(0, 'f32')), 'snapshot_corrupt')
  })

  it('are refused for memory out of reach', async () => {
    const bytes = await file()
    const grown = (capacity: number) => reconfigured(bytes, (config) => Object.assign(config, { capacity }))
    await refuses(grown(2 ** 28), 'out_of_memory')
    await refuses(grown(2 ** 60), 'snapshot_corrupt')
    await refuses(grown(99), 'snapshot_corrupt')
  })

  it('are refused with names twice, __proto__, or values that are not finite', async () => {
    const bytes = await file()
    const rename = (from: string, to: string) =>
      rewritten(
        bytes,
        () => {},
        (json) => json.replace(from, to),
      )
    await refuses(rename('"layers.1.keys"', '"layers.0.keys"'), 'snapshot_corrupt')
    await refuses(rename('"layers.1.keys"', '"__proto__"'), 'snapshot_corrupt')
    await refuses(rename('"layers.1.keys"', '"other"'), 'snapshot_corrupt')
    const nan = rewritten(bytes, (_header, data) => data.set([0, 0, 0xc0, 0x7f], 400))
    const error = await refuses(nan, 'snapshot_corrupt')
    expect(error.got).toContain('layers.0.keys')
    expect(error.got).toContain('NaN')
  })
})
