import { describe, expect, it } from 'vitest'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import { Engine } from '../../sdk/engine.ts'
import { readTensors } from '../../sdk/llm/folder.ts'
import { loadModel } from '../../sdk/llm/index.ts'
import { refused } from '../support/sessions.ts'
import { editJson, type Files, filesOf, fixturePath, memorySource } from './models.ts'

const SINGLE = 'model.safetensors'

/** Loads; whatever is refused leaves nothing on the backend. */
async function load(files: Files) {
  const backend = createReferenceBackend()
  try {
    return await loadModel({ engine: new Engine(backend), source: memorySource(files) })
  } catch (error) {
    expect(backend.allocated()).toBe(0)
    throw error
  }
}

/** Overwrites one element of a tensor. */
async function poke(files: Files, name: string, element: number, bits: number, bytes: 2 | 4) {
  const { file, at } = (await readTensors(memorySource(files))).tensors.get(name)!
  const data = files.get(file)!
  const view = new DataView(data.buffer, data.byteOffset + at + element * bytes)
  if (bytes === 4) view.setUint32(0, bits, true)
  else view.setUint16(0, bits, true)
  return file
}

/** Changes the header of model.safetensors, whose data may get more bytes. */
function editHeader(files: Files, edit: (header: Record<string, unknown>, end: number) => void, more = 0) {
  const file = files.get(SINGLE)!
  const size = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true))
  const header = JSON.parse(new TextDecoder().decode(file.subarray(8, 8 + size))) as Record<string, unknown>
  edit(header, file.length - 8 - size)
  const json = new TextEncoder().encode(JSON.stringify(header))
  const out = new Uint8Array(8 + json.length + file.length - 8 - size + more)
  new DataView(out.buffer).setBigUint64(0, BigInt(json.length), true)
  out.set(json, 8)
  out.set(file.subarray(8 + size), 8 + json.length)
  files.set(SINGLE, out)
}

describe('weights', () => {
  const matrix = 'model.layers.1.mlp.up_proj.weight'
  const vector = 'model.norm.weight'
  it.each<[string, string, number, number, 2 | 4]>([
    ['qwen2-bias-f32', matrix, 77, 0x7fc00000, 4],
    ['qwen2-bias-f32', vector, 3, 0xff800000, 4],
    ['llama-tied-f16-sharded', matrix, 77, 0xfc00, 2],
    ['llama-tied-f16-sharded', vector, 3, 0x7e01, 2],
    ['qwen3-untied-bf16', matrix, 77, 0x7f80, 2],
    ['qwen3-untied-bf16', vector, 3, 0xffc1, 2],
  ])('of %s: %s that is not finite at %i is refused', async (model, name, element, bits, bytes) => {
    const files = await filesOf(fixturePath(model))
    const file = await poke(files, name, element, bits, bytes)
    const error = await refused(load(files), 'bad_model')
    expect(error.where).toBe(file)
    expect(error.got).toBe(`${name} with a value that is not finite, element ${element}`)
  })

  it('up to the largest finite value are taken, from a view at any byte', async () => {
    const files = await filesOf(fixturePath('qwen3-untied-bf16'))
    await poke(files, matrix, 77, 0xff7f, 2)
    const source = memorySource(files)
    const shifted = async (name: string, from?: number, to?: number) => {
      const bytes = await source.read(name, from, to)
      const odd = new Uint8Array(bytes.length + 1).subarray(1)
      odd.set(bytes)
      return odd
    }
    const model = await loadModel({
      engine: new Engine(createReferenceBackend()),
      source: { ...source, read: shifted },
    })
    await model.dispose()
  })
})

describe('tensors of a file', () => {
  it('that the model does not need may be of any dtype', async () => {
    const files = await filesOf(fixturePath('qwen3-untied-bf16'))
    const add = (header: Record<string, unknown>, end: number) => {
      header.positions = { dtype: 'I64', shape: [2], data_offsets: [end, end + 16] }
      header.mask = { dtype: 'BOOL', shape: [3], data_offsets: [end + 16, end + 19] }
      header.scale = { dtype: 'F64', shape: [], data_offsets: [end + 19, end + 27] }
    }
    editHeader(files, add, 27)
    await (await load(files)).dispose()
  })

  it('that it needs must be floats, and there', async () => {
    const name = 'model.norm.weight'
    const integer = await filesOf(fixturePath('qwen3-untied-bf16'))
    editHeader(integer, (header) => Object.assign(header[name] as object, { dtype: 'I16' }))
    const typed = await refused(load(integer), 'bad_model')
    expect([typed.where, typed.got]).toEqual([SINGLE, `${name} of dtype I16`])

    const renamed = await filesOf(fixturePath('qwen3-untied-bf16'))
    editHeader(renamed, (header) => {
      header.other = header[name]
      delete header[name]
    })
    const absent = await refused(load(renamed), 'bad_model')
    expect([absent.where, absent.got]).toEqual([SINGLE, `no tensor ${name}`])
  })
})

describe('generation_config.json', () => {
  const FILE = 'generation_config.json'
  const withFields = async (fields: Record<string, unknown>) => {
    const files = await filesOf(fixturePath('qwen3-untied-bf16'))
    editJson(files, FILE, fields)
    return load(files)
  }

  it.each([
    ['top_k', -1],
    ['top_k', 1.5],
    ['top_p', 0],
    ['temperature', 'warm'],
  ])('%s of %j is refused by its name', async (name, value) => {
    const error = await refused(withFields({ do_sample: true, [name]: value }), 'bad_model')
    expect(error.where).toBe(FILE)
    expect(error.got).toContain(name)
  })

  it('is read where it samples, and only there', async () => {
    const model = await withFields({ do_sample: true, top_k: null, top_p: 0.9 })
    expect(model.defaults).toEqual({ temperature: 1, topK: 50, topP: 0.9 })
    expect((await withFields({ do_sample: false, top_k: -1 })).defaults).toEqual({})
  })
})
