import { afterEach, describe, expect, it } from 'vitest'
import type { Buf } from '../../sdk/backend.ts'
import { createWebgpuBackend, type WebgpuBackend, type WebgpuOptions } from '../../sdk/backends/webgpu.ts'
import { Bytes } from '../../sdk/bytes.ts'
import { makeRotation } from '../../sdk/codec/codec.ts'
import { seededSigns } from '../../sdk/codec/signs.ts'
import { openDevice, sharedDevice } from '../support/gpu.ts'
import { gaussians, random } from '../support/inputs.ts'
import { oracle } from '../support/jobs.ts'

const [KIB, MIB] = [1 << 10, 1 << 20]
/** Mapped buffers of large writes. */
interface Mapped {
  made: number
  alive: number
  bytes: number
}

const closing: (() => void)[] = []
afterEach(() => {
  for (const close of closing.splice(0).reverse()) close()
  unhandled.length = 0
})
const unhandled: unknown[] = []
const note = (reason: unknown) => unhandled.push(reason)

/** A backend on a device whose mapped buffers are counted; `meet` sees each of them first. */
async function open(
  options: WebgpuOptions = {},
  {
    own = false,
    meet = (_: GPUBuffer): unknown => undefined,
  }: { own?: boolean; meet?: (buffer: GPUBuffer) => unknown } = {},
) {
  const device = await (own ? openDevice() : sharedDevice())
  process.on('unhandledRejection', note)
  closing.push(() => process.off('unhandledRejection', note))
  const mapped: Mapped = { made: 0, alive: 0, bytes: 0 }
  const { createBuffer } = device
  device.createBuffer = (descriptor) => {
    const buffer = createBuffer.call(device, descriptor)
    if (descriptor.label !== 'upload') return buffer
    mapped.made++
    mapped.alive++
    mapped.bytes += descriptor.size
    const { destroy } = buffer
    buffer.destroy = () => {
      mapped.alive--
      mapped.bytes -= descriptor.size
      return destroy.call(buffer)
    }
    meet(buffer)
    return buffer
  }
  const backend = await createWebgpuBackend(device, options)
  closing.push(() => {
    backend.dispose()
    expect(mapped).toMatchObject({ alive: 0, bytes: 0 })
    device.createBuffer = createBuffer
    if (own) device.destroy()
  })
  return { backend, device, mapped }
}

const alloc = async (backend: WebgpuBackend, bytes: number) => (await backend.alloc([{ label: 'x', bytes }]))[0]

const words = Uint32Array.from({ length: 5 * MIB }, (_, i) => Math.imul(i, 0x9e3779b1))
/** Bytes of which no two stretches are alike. */
const noise = (bytes: number, seed = 1) => new Uint8Array(words.buffer, seed * 4096, bytes).slice()

async function expectBytes(backend: WebgpuBackend, buf: Buf, want: Uint8Array): Promise<void> {
  const got = await backend.read(buf, 0, want.length)
  const at = Buffer.compare(got, want) === 0 ? -1 : got.findIndex((byte, i) => byte !== want[i])
  expect(at, 'first byte that differs').toBe(-1)
}

/** Copies of data in memory of every kind. */
const memories: Record<string, (data: Uint8Array<ArrayBuffer>) => Uint8Array> = {
  shared: (data) => {
    const view = new Uint8Array(new SharedArrayBuffer(data.length + 8), 4, data.length)
    view.set(data)
    return view
  },
  growable: (data) => {
    const Growable = SharedArrayBuffer as unknown as new (bytes: number, options: object) => SharedArrayBuffer
    const view = new Uint8Array(new Growable(data.length, { maxByteLength: data.length * 2 }))
    view.set(data)
    return view
  },
  resizable: (data) => {
    const Resizable = ArrayBuffer as unknown as new (bytes: number, options: object) => ArrayBuffer
    const view = new Uint8Array(new Resizable(data.length, { maxByteLength: data.length * 2 }))
    view.set(data)
    return view
  },
  'shared, as a Buffer': (data) => {
    const view = Buffer.from(new SharedArrayBuffer(data.length) as unknown as ArrayBuffer)
    view.set(data)
    return view
  },
}

describe('large writes of the webgpu backend', () => {
  it('bring every byte to its place, whatever the size and offset', async () => {
    const { backend, mapped } = await open()
    const sizes = [4, 16 * KIB + 4, 256 * KIB - 4, 256 * KIB, 256 * KIB + 4, 409_600, MIB - 4, 3 * MIB + 4]
    for (const [i, size] of [...sizes, 16 * MIB - 4, 16 * MIB, 16 * MIB + 4].entries()) {
      const offset = [0, 4, 260][i % 3]
      const buf = await alloc(backend, size + 512)
      const want = new Uint8Array(size + 512)
      want.set(noise(size, i), offset)
      backend.write(buf, offset, noise(size, i))
      await expectBytes(backend, buf, want)
      expect(mapped.made > 0).toBe(size > 256 * KIB)
      backend.free([buf])
      expect([mapped.alive, backend.allocated()]).toEqual([0, 0])
      mapped.made = 0
    }
  })

  it('keep the order of calls, among themselves and with small writes, copies and clears', async () => {
    const { backend, mapped } = await open()
    const [size, next] = [4 * MIB, random(5)]
    const bufs = [await alloc(backend, size), await alloc(backend, size)]
    const want = bufs.map(() => new Uint8Array(size))
    for (let call = 0; call < 60; call++) {
      const [which, kind] = [call % 2, Math.floor(next() * 10)]
      const bytes = kind < 6 ? 4 * Math.ceil((next() * size) / 8) : 4 * Math.ceil(next() * 5000)
      const offset = 4 * Math.floor((next() * (size - bytes)) / 4)
      if (kind === 9) {
        backend.clear(bufs[which])
        want[which].fill(0)
      } else if (kind === 8) {
        backend.copy(bufs[which], offset, bufs[1 - which], offset, bytes)
        want[1 - which].set(want[which].subarray(offset, offset + bytes), offset)
      } else {
        const data = noise(bytes, call)
        backend.write(bufs[which], offset, data)
        want[which].set(data, offset)
        data.fill(255) // The call has taken what it needs.
      }
    }
    for (const [i, buf] of bufs.entries()) await expectBytes(backend, buf, want[i])
    expect(mapped.made).toBeGreaterThan(2)
  })

  it('keep the order with kernels before and after', async () => {
    const { backend, mapped } = await open()
    const [d, rows] = [64, 1100]
    const signs = await alloc(backend, d)
    backend.write(signs, 0, new Uint8Array(seededSigns(7, d).buffer))
    const [x, y1, y2, exponents] = await backend.alloc(
      [rows * d * 4, rows * d * 4, rows * d * 4, rows * 4].map((bytes) => ({ label: 'x', bytes })),
    )
    const given = [1, 2].map((seed) => gaussians(random(seed), rows * d))
    for (const [i, y] of [y1, y2].entries()) {
      backend.write(x, 0, new Uint8Array(given[i].slice().buffer))
      backend.rotate([{ x, rows, rotation: makeRotation(d, signs), y, exponents }])
    }
    for (const [i, y] of [y1, y2].entries()) {
      const rotation = makeRotation(d, Bytes.of(seededSigns(7, d)))
      const job = { x: Bytes.of(given[i]), rows, rotation, y: new Bytes(rows * d * 4), exponents: new Bytes(rows * 4) }
      await expectBytes(backend, y, oracle('rotate', job).y.u8)
    }
    expect(mapped.made).toBe(2)
  })

  for (const [kind, make] of Object.entries(memories))
    it(`take memory that is ${kind}, also into a caller’s recording`, async () => {
      const { backend, device } = await open()
      for (const size of [1024, 100 * KIB, MIB]) {
        const [buf, recorded] = [await alloc(backend, size), await alloc(backend, size)]
        backend.write(buf, 0, make(noise(size)))
        const encoder = device.createCommandEncoder()
        const release = backend.recordInto(encoder, () => backend.write(recorded, 0, make(noise(size, 2))))
        await expectBytes(backend, buf, noise(size))
        device.queue.submit([encoder.finish()])
        release(true)
        await expectBytes(backend, recorded, noise(size, 2))
        backend.free([buf, recorded])
      }
    })

  it('go on where every mapped buffer is under way, and use those again', async () => {
    const { backend, mapped } = await open()
    const size = 14 * MIB
    const buf = await alloc(backend, 20 * MIB)
    const want = new Uint8Array(20 * MIB)
    const write = (at: number, data: Uint8Array<ArrayBuffer>) => {
      backend.write(buf, at, memories.shared(data))
      want.set(data, at)
    }
    for (let round = 0; round < 2; round++) {
      for (let i = 0; i < 6; i++) write(i * MIB, noise(size, round * 6 + i))
      await expectBytes(backend, buf, want)
      expect(mapped).toEqual({ made: 4, alive: 4, bytes: 64 * MIB })
    }
    // A larger buffer serves, too.
    for (let i = 0; i < 5; i++) write(i * MIB, noise(MIB, i + 20))
    await expectBytes(backend, buf, want)
    expect(mapped).toEqual({ made: 4, alive: 4, bytes: 64 * MIB })
  })

  it('make room for large mapped buffers among small idle ones', async () => {
    const { backend, mapped } = await open()
    const buf = await alloc(backend, 16 * MIB)
    for (let i = 0; i < 128; i++) backend.write(buf, i * 4096, noise(MIB / 2, i))
    await backend.read(buf, 0, 4)
    expect(mapped.bytes).toBe(64 * MIB)
    for (let i = 0; i < 2; i++) backend.write(buf, 0, noise(16 * MIB, i))
    await expectBytes(backend, buf, noise(16 * MIB, 1))
    expect(mapped.bytes).toBe(32 * MIB)
  })

  it('stay within the memory limit, and out of the way of what is allocated', async () => {
    const { backend, mapped } = await open({ memoryLimit: 4 * MIB })
    const first = await alloc(backend, 3.5 * MIB)
    backend.write(first, 0, noise(3 * MIB))
    await backend.read(first, 0, 4)
    expect(mapped.made).toBe(0)
    backend.write(first, 4, noise(MIB / 2, 2))
    expect([mapped.bytes, backend.allocated()]).toEqual([MIB / 2, 3.5 * MIB])
    const want = noise(3 * MIB)
    want.set(noise(MIB / 2, 2), 4)
    // Takes the place of mapped memory that is recorded and not yet submitted.
    const second = await alloc(backend, MIB / 2)
    expect([mapped.bytes, backend.allocated()]).toEqual([0, 4 * MIB])
    backend.write(second, 0, noise(MIB / 2, 3))
    await expectBytes(backend, first, want)
    await expectBytes(backend, second, noise(MIB / 2, 3))
    expect(mapped.made).toBe(1)
    await expect(alloc(backend, 4)).rejects.toMatchObject({ code: 'out_of_memory' })
  })

  const failures: Record<string, (buffer: GPUBuffer) => void> = {
    'cannot be made': (buffer) => {
      buffer.destroy()
      throw new RangeError('injected')
    },
    'lost their mapped memory': (buffer) => buffer.unmap(),
    'cannot be mapped again': (buffer) => {
      buffer.mapAsync = () => Promise.reject(new Error('injected'))
    },
  }
  for (const [what, meet] of Object.entries(failures))
    it(`go on where buffers ${what}`, async () => {
      const { backend, mapped } = await open({}, { own: true, meet })
      const buf = await alloc(backend, 2 * MIB)
      for (let round = 0; round < 3; round++) {
        backend.write(buf, 0, noise(2 * MIB, round))
        await expectBytes(backend, buf, noise(2 * MIB, round))
      }
      expect(mapped.made).toBe(3)
      expect(mapped.alive).toBe(0)
      expect(unhandled).toEqual([])
    })

  it('answer a device lost while they are under way with device_lost', async () => {
    for (const when of ['recorded', 'submitted', 'filled'] as const) {
      let [lose, made] = [() => {}, 0]
      // The second piece of the write that follows finds its memory gone.
      const meet = () => when === 'filled' && ++made === 3 && lose()
      const { backend, device, mapped } = await open({}, { own: true, meet })
      lose = () => device.destroy()
      const [buf, other] = [await alloc(backend, 18 * MIB), await alloc(backend, 4)]
      const data = noise(18 * MIB)
      backend.write(buf, 0, data.subarray(0, 8 * MIB))
      const flying = when === 'recorded' ? undefined : backend.read(other, 0, 4)
      const outcome = flying && expect(flying).rejects.toMatchObject({ code: 'device_lost' })
      if (when !== 'filled') device.destroy()
      // The loss is not told yet.
      backend.write(buf, 0, data)
      await expect(backend.read(other, 0, 4)).rejects.toMatchObject({ code: 'device_lost' })
      await outcome
      expect(mapped.made).toBeGreaterThan(1)
      expect(() => backend.write(buf, 0, data)).toThrow(expect.objectContaining({ code: 'device_lost' }))
      backend.free([buf, other])
    }
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect(unhandled).toEqual([])
  })

  it('leave nothing behind a dispose, mapped, submitted or recorded', async () => {
    const { backend, mapped } = await open()
    const buf = await alloc(backend, 4 * MIB)
    backend.write(buf, 0, noise(MIB))
    await backend.read(buf, 0, 4)
    backend.write(buf, 0, noise(2 * MIB))
    backend.flush()
    backend.write(buf, 0, noise(4 * MIB))
    expect(mapped.alive).toBe(3)
    backend.dispose()
    expect(mapped).toEqual({ made: 3, alive: 0, bytes: 0 })
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(mapped.made).toBe(3)
    expect(unhandled).toEqual([])
  })
})
