import { expect, it } from 'vitest'
import type { PolicyOptions, SessionOptions } from '../../sdk/config.ts'
import { type Dtype, f32ToBf16, f32ToF16 } from '../../sdk/dtype.ts'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { openWebgpu } from '../support/gpu.ts'
import { contentsOf as contents, roomOf as room } from '../support/gpu-tensors.ts'
import { expectSame } from '../support/repeat.ts'
import {
  expectSameState,
  feed,
  options,
  queriesAt,
  refused,
  refusedUnchanged,
  rows,
  sequence,
  tokensOf,
} from '../support/sessions.ts'

const LAYERS = 3
const seq = sequence(301, 400)
const QUERIES = 4 * 16 * 4

const onWebgpu = (body: (engine: () => Engine) => void) =>
  onEveryBackend('recording', (backend, name) => {
    const engine = () => new Engine(backend())
    if (name === 'webgpu') return body(engine)

    it('is refused', async () => {
      expect(engine().gpu).toBeUndefined()
      const session = await engine().createSession(options({ store: 'f32' }))
      const [encoder, buffer] = [{} as GPUCommandEncoder, {} as GPUBuffer]
      const calls = [
        () => session.encodeAppend(encoder, 0, { keys: buffer, values: buffer, tokens: 1 }),
        () => session.encodeAttend(encoder, 0, { queries: buffer, output: buffer }),
        () =>
          session.encodePrefill(encoder, 0, {
            keys: buffer,
            values: buffer,
            queries: buffer,
            output: buffer,
            tokens: 1,
          }),
      ]
      for (const call of calls) expect((await refused(call, 'backend_unavailable')).fix).toContain("device: 'webgpu'")
    })
  })

/** A GPUBuffer that holds the data, after `offset` bytes of something else. */
function onDevice(device: GPUDevice, data: ArrayBufferView, offset = 0): GPUBuffer {
  const buffer = device.createBuffer({ size: offset + data.byteLength, usage: 0x80 | 0x04 | 0x08 })
  device.queue.writeBuffer(buffer, offset, data.buffer as ArrayBuffer, data.byteOffset, data.byteLength)
  return buffer
}

const bitsOf = (x: Float32Array) => new Uint32Array(x.buffer, x.byteOffset, x.length)

/** As a tensor of a dtype. */
function as(dtype: Dtype, x: Float32Array) {
  if (dtype === 'f32') return { dtype, data: x } as const
  return { dtype, data: Uint16Array.from(x, dtype === 'f16' ? f32ToF16 : f32ToBf16) } as const
}

onWebgpu((open) => {
  const session = (over: Partial<SessionOptions> = {}, policy: PolicyOptions = {}) =>
    open().createSession(options({ layers: LAYERS, store: 'bf16', ...over }, policy))
  const device = () => open().gpu as GPUDevice

  /** Records a prompt and `steps` decode steps of every layer, submits once; the same by typed arrays on another. */
  async function both(recorded: Session, typed: Session, dtype: Dtype, prompt: number, steps: number) {
    const gpu = device()
    const encoder = gpu.createCommandEncoder()
    const wanted: { got: GPUBuffer; want: Float32Array; what: string }[] = []
    const releases: (() => void)[] = []
    for (let l = 0; l < LAYERS; l++) {
      const { keys, values } = rows(seq, l, l + prompt)
      const queries = tokensOf(seq.queries, seq.n, seq.d, l, l + prompt)
      const [output, lse] = [room(gpu, prompt * QUERIES), room(gpu, prompt * 16)]
      releases.push(
        recorded.encodePrefill(encoder, l, {
          tokens: prompt,
          dtype,
          keys: onDevice(gpu, as(dtype, keys).data),
          values: { buffer: onDevice(gpu, as(dtype, values).data, 48), offset: 48 },
          queries: onDevice(gpu, queries),
          output,
          // The middle layer asks for no lse.
          ...(l === 1 ? {} : { lse }),
        }),
      )
      const want = await typed.prefill(l, { keys: as(dtype, keys), values: as(dtype, values), queries })
      wanted.push({ got: output, want: want.output, what: `prefill output of layer ${l}` })
      if (l !== 1) wanted.push({ got: lse, want: want.lse, what: `prefill lse of layer ${l}` })
    }
    for (let t = prompt; t < prompt + steps; t++)
      for (let l = 0; l < LAYERS; l++) {
        const { keys, values } = rows(seq, l + t, l + t + 1)
        const queries = queriesAt(seq, l + t)
        const [output, lse] = [room(gpu, QUERIES), room(gpu, 16)]
        const given = { keys: onDevice(gpu, as(dtype, keys).data), values: onDevice(gpu, as(dtype, values).data) }
        releases.push(
          recorded.encodeAppend(encoder, l, { ...given, tokens: 1, dtype }),
          recorded.encodeAttend(encoder, l, {
            queries: { buffer: onDevice(gpu, queries, 16), offset: 16 },
            output,
            ...(t % 2 ? { lse } : {}),
          }),
        )
        await typed.append(l, { keys: as(dtype, keys), values: as(dtype, values) })
        const want = await typed.attend(l, { queries })
        wanted.push({ got: output, want: want.output, what: `output of layer ${l}, token ${t}` })
        if (t % 2) wanted.push({ got: lse, want: want.lse, what: `lse of layer ${l}, token ${t}` })
      }
    expect(recorded.length(1)).toBe(prompt + steps)
    gpu.queue.submit([encoder.finish()])
    for (const release of releases) release()
    for (const { got, want, what } of wanted) expectSame(bitsOf(await contents(gpu, got)), bitsOf(want), what)
  }

  it.each<[Dtype, PolicyOptions]>([
    ['f32', {}],
    ['f16', { normWeighted: true, group: 'max' }],
    ['bf16', { coarse: 'collision' }],
  ])('gives what typed arrays give, to the bit: %s %o', async (dtype, policy) => {
    const [recorded, typed] = [await session({}, policy), await session({}, policy)]
    await both(recorded, typed, dtype, 300, 11)
    await expectSameState(recorded, typed)
    expect(recorded.stats()).toEqual(typed.stats())
    expect(await recorded.check()).toMatchObject({ ok: true, refused: 0 })
    const queries = queriesAt(seq, 320)
    expect(await recorded.attend(2, { queries })).toEqual(await typed.attend(2, { queries }))
    await expectSameState(await recorded.fork(), typed)
  })

  it('attends to an empty layer: 0 and −Inf', async () => {
    const gpu = device()
    const [output, lse] = [room(gpu, QUERIES), room(gpu, 16)]
    const encoder = gpu.createCommandEncoder()
    const release = (await session()).encodeAttend(encoder, 0, {
      queries: onDevice(gpu, queriesAt(seq, 0)),
      output,
      lse,
    })
    gpu.queue.submit([encoder.finish()])
    release()
    expect((await contents(gpu, output)).every((x) => x === 0)).toBe(true)
    expect([...(await contents(gpu, lse))]).toEqual(Array(4).fill(Number.NEGATIVE_INFINITY))
  })

  it('refuses before anything is recorded', async () => {
    const gpu = device()
    const encoder = gpu.createCommandEncoder()
    const one = await session()
    await feed(one, seq, 0, 60)
    const { keys, values } = rows(seq, 60, 65)
    const [k, v] = [onDevice(gpu, keys), onDevice(gpu, values)]
    const [queries, output] = [onDevice(gpu, tokensOf(seq.queries, seq.n, seq.d, 60, 65)), room(gpu, 5 * QUERIES)]
    const given = { keys: k, values: v, tokens: 5 }
    const unbound = gpu.createBuffer({ size: 4096, usage: 0x08 })
    const cases: [() => unknown, Parameters<typeof refused>[1], string][] = [
      [() => one.encodeAppend(encoder, LAYERS, given), 'bad_layer', 'layer'],
      [() => one.encodeAppend(encoder, 0, { ...given, tokens: 453 }), 'capacity', 'encodeAppend'],
      [() => one.encodeAppend(encoder, 0, { ...given, tokens: 6 }), 'bad_shape', 'keys'],
      [() => one.encodeAppend(encoder, 0, { ...given, tokens: 0 }), 'bad_shape', 'tokens'],
      [() => one.encodeAppend(encoder, 0, { ...given, dtype: 'f64' as Dtype }), 'bad_dtype', 'dtype'],
      [() => one.encodeAppend(encoder, 0, { ...given, values: { buffer: v, offset: 16 } }), 'bad_shape', 'values'],
      [() => one.encodeAppend(encoder, 0, { ...given, keys: { buffer: k, offset: 2 } }), 'bad_shape', 'keys'],
      [() => one.encodeAppend(encoder, 0, { ...given, keys: unbound }), 'bad_dtype', 'keys'],
      [() => one.encodeAppend(encoder, 0, { ...given, keys: keys as unknown as GPUBuffer }), 'bad_dtype', 'keys'],
      [() => one.encodeAppend(keys as unknown as GPUCommandEncoder, 0, given), 'bad_dtype', 'encodeAppend'],
      [() => one.encodeAttend(encoder, 0, { queries, output: room(gpu, 64) }), 'bad_shape', 'output'],
      [() => one.encodeAttend(encoder, 0, { queries, output: queries }), 'bad_shape', 'output'],
      [() => one.encodeAttend(encoder, 0, { queries, output, lse: output }), 'bad_shape', 'output'],
      [() => one.encodePrefill(encoder, 0, { ...given, queries: k, output }), 'bad_shape', 'queries'],
      [() => one.encodePrefill(encoder, 0, { ...given, queries, output: k }), 'bad_shape', 'output'],
    ]
    for (const [call, code, where] of cases) {
      const error = await refusedUnchanged(one, async () => call(), code)
      expect(error.where).toContain(where)
    }
    const late = await session({ store: undefined })
    expect((await refused(() => late.encodeAppend(encoder, 0, given), 'bad_config')).fix).toContain('store')
    gpu.queue.submit([encoder.finish()])
    expect(one.stats().calls).toMatchObject({ append: 1, attend: 0, prefill: 0 })
    await one.dispose()
    await refused(() => one.encodeAppend(encoder, 0, given), 'disposed')
  })

  it('refuses while calls of the session are under way, and not after', async () => {
    const gpu = device()
    const one = await session()
    const { keys, values } = rows(seq, 0, 1)
    const given = { keys: onDevice(gpu, keys), values: onDevice(gpu, values), tokens: 1 }
    const encoder = gpu.createCommandEncoder()
    const under = one.append(0, rows(seq, 1, 9))
    await refused(() => one.encodeAppend(encoder, 0, given), 'busy')
    await under
    const failed = one.truncate(100)
    await refused(() => one.encodeAppend(encoder, 0, given), 'busy')
    await refused(failed, 'bad_length')
    const release = one.encodeAppend(encoder, 0, given)
    gpu.queue.submit([encoder.finish()])
    release()
    expect(one.length()).toBe(9)
  })

  it('stores what is not finite as 0, counts it, and says so once', async () => {
    const gpu = device()
    const [one, clean] = [await session(), await session()]
    const { keys, values } = rows(seq, 0, 60)
    const spoil = (x: Float32Array, at: readonly number[], value: number) =>
      x.map((v, i) => (at.includes(i) ? value : v))
    const encoder = gpu.createCommandEncoder()
    const release = one.encodeAppend(encoder, 0, {
      keys: onDevice(gpu, spoil(spoil(keys, [3, 900], Number.NaN), [77], 3.4e38)),
      values: onDevice(gpu, spoil(values, [5], Number.NEGATIVE_INFINITY)),
      tokens: 60,
    })
    gpu.queue.submit([encoder.finish()])
    release()
    await clean.append(0, { keys: spoil(keys, [3, 77, 900], 0), values: spoil(values, [5], 0) })
    await expectSameState(one, clean)
    const queries = queriesAt(seq, 60)
    const fork = await one.fork()
    for (const session of [one, fork]) {
      const error = await refused(session.attend(0, { queries }), 'not_finite')
      expect(error.got).toContain('4 values')
      expect(error.fix).toContain('stored as 0')
      expect(await session.attend(0, { queries })).toEqual(await clean.attend(0, { queries }))
      await session.retrieve(0, { queries })
      const report = await session.check()
      expect([report.ok, report.refused, report.problems.length]).toEqual([false, 4, 1])
    }
  })

  it('answers a device that is lost afterwards with the typed error', async () => {
    const backend = await openWebgpu()
    const engine = new Engine(backend)
    const one = await engine.createSession(options({ store: 'f32' }))
    // So few that nothing crosses into the retrieval zone: a device of its own would compile the encoder anew.
    const { keys, values } = rows(seq, 0, 12)
    const encoder = backend.device.createCommandEncoder()
    const given = { keys: onDevice(backend.device, keys), values: onDevice(backend.device, values), tokens: 12 }
    const release = one.encodeAppend(encoder, 0, given)
    backend.device.queue.submit([encoder.finish()])
    backend.device.destroy()
    release()
    await refused(one.attend(0, { queries: queriesAt(seq, 0) }), 'device_lost')
    await refused(() => one.encodeAppend(encoder, 0, given), 'device_lost')
    expect(one.length()).toBe(12)
    await engine.dispose()
  })
})
