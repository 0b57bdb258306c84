import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { onEveryBackend } from '../support/backends.ts'

const OPTIONS = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: 8, capacity: 400, store: 'f32' } as const
const filled = (length: number, value = 2) => new Float32Array(length).fill(value)

class Matrix extends Float32Array {
  constructor(rows: number, cols: number) {
    super(rows * cols)
  }
}

class Liar extends Float32Array {
  override get length(): number {
    return 8
  }
}

interface Resizable extends ArrayBuffer {
  resize(bytes: number): void
}
const resizable = (bytes: number, most: number) =>
  new (ArrayBuffer as unknown as new (bytes: number, options: object) => Resizable)(bytes, { maxByteLength: most })

onEveryBackend('views that are not what they seem', (backend) => {
  const open = () => new Engine(backend()).createSession(OPTIONS)

  it('takes subclasses with constructors of their own as what they hold', async () => {
    const session = await open()
    const rows = new Matrix(10, 8).fill(2)
    await session.append(0, { keys: rows, values: rows })
    const { output } = await session.attend(0, { queries: filled(8) })
    expect([...output].map(Math.fround)).toEqual(Array(8).fill(2))
    await session.dispose()
  })

  it('does not believe a view about its length', async () => {
    const session = await open()
    await expect(session.attend(0, { queries: new Liar(20_000) })).rejects.toMatchObject({ code: 'bad_shape' })
    await session.dispose()
  })

  it('reads no more than it checked of memory that grows', async () => {
    const [session, other] = [await open(), await open()]
    const rows = filled(8 * 100)
    for (const s of [session, other]) await s.append(0, { keys: rows, values: rows })
    const memory = resizable(32, 65_536)
    const queries = new Float32Array(memory)
    const attended = session.attend(0, { queries })
    memory.resize(65_536)
    queries.fill(7)
    await attended
    const { output } = await other.attend(0, { queries: filled(8) })
    expect([...output]).toEqual(Array(8).fill(expect.closeTo(2, 5)))
    for (const s of [session, other]) await s.dispose()
  })

  it('refuses memory that shrank or went away before its turn, and changes nothing', async () => {
    const session = await open()
    const memory = resizable(320, 320)
    const shrinking = new Float32Array(memory)
    const appended = session.append(0, { keys: shrinking, values: shrinking })
    memory.resize(64)
    await expect(appended).rejects.toMatchObject({ code: 'bad_shape' })
    const gone = filled(80)
    const second = session.append(0, { keys: gone, values: gone })
    structuredClone(gone.buffer, { transfer: [gone.buffer] })
    await expect(second).rejects.toMatchObject({ code: 'bad_shape' })
    await expect(session.append(0, { keys: gone, values: gone })).rejects.toThrow()
    expect(session.length()).toBe(0)
    await session.dispose()
  })

  it('keeps a stray write inside its buffer', async () => {
    const [a, b] = await backend().alloc(['a', 'b'].map((label) => ({ label, bytes: 64 })))
    if (backend().name !== 'webgpu')
      expect(() => backend().write(a, 32, new Uint8Array(64).fill(9))).toThrow(RangeError)
    expect([...(await backend().read(b, 0, 64))]).toEqual(Array(64).fill(0))
    backend().free([a, b])
    if (backend().name === 'wasm') expect(() => backend().write(a, 0, new Uint8Array(4))).toThrow('freed')
  })
})
