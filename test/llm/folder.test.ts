import { execFileSync } from 'node:child_process'
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openModelFolder } from '../../adapters/node-files.ts'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import { Engine } from '../../sdk/engine.ts'
import { loadModel } from '../../sdk/llm/index.ts'
import { refused } from '../support/sessions.ts'
import { editJson, type Files, filesOf, fixturePath, memorySource, needlePath } from './models.ts'

const SHARD = 'model-00002-of-00003.safetensors'
const INDEX = 'model.safetensors.index.json'

/** Loads changed files; whatever is refused leaves nothing on the backend. */
async function load(files: Files) {
  const backend = createReferenceBackend()
  try {
    return await loadModel({ engine: new Engine(backend), source: memorySource(files) })
  } catch (error) {
    expect(backend.allocated()).toBe(0)
    throw error
  }
}

describe('a folder in shards', () => {
  const path = fixturePath('llama-tied-f16-sharded')
  const edited = async (edit: (files: Files) => void) => {
    const files = await filesOf(path)
    edit(files)
    return files
  }
  const part = (files: Files, from: number, to?: number) => files.get(SHARD)!.slice(from, to)

  it('loads, and tells how far it is', async () => {
    const seen: number[] = []
    const backend = createReferenceBackend()
    const source = memorySource(await filesOf(path))
    const model = await loadModel({
      engine: new Engine(backend),
      source,
      onProgress: ({ done, total, unit }) => {
        expect(unit).toBe('bytes')
        seen.push(done / total)
      },
    })
    expect(seen.at(-1)).toBe(1)
    expect(seen).toEqual([...seen].sort((a, b) => a - b))
    expect(backend.allocated()).toBe(model.bytes)
    await model.dispose()
    expect(backend.allocated()).toBe(0)
  })

  it.each<[string, (files: Files) => void, string, string]>([
    ['a missing shard', (f) => f.delete(SHARD), SHARD, 'no such file'],
    ['a truncated shard', (f) => f.set(SHARD, part(f, 0, -1)), SHARD, 'bytes'],
    ['a shard that ends in its header', (f) => f.set(SHARD, part(f, 0, 100)), SHARD, '100 bytes'],
    ['an empty shard', (f) => f.set(SHARD, new Uint8Array(0)), SHARD, '0 bytes'],
    ['bytes behind a shard', (f) => f.set(SHARD, Uint8Array.from([...part(f, 0), 0])), SHARD, 'bytes'],
    ['a shard that is no safetensors file', (f) => f.set(SHARD, part(f, 0).fill(65)), SHARD, 'header'],
    [
      'an index that names an absent tensor',
      (f) => editJson(f, INDEX, { weight_map: { 'model.norm.weight': SHARD } }),
      INDEX,
      'model.norm.weight',
    ],
    ['an index without a map', (f) => editJson(f, INDEX, { weight_map: [] }), INDEX, 'weight_map'],
    ['an index that is no JSON', (f) => f.set(INDEX, part(f, 0, 50)), INDEX, 'not JSON'],
    ['an index that leads outside', (f) => editJson(f, INDEX, { weight_map: { a: '../a' } }), INDEX, '../a'],
    ['a tensor that is nowhere', (f) => editJson(f, 'config.json', { num_hidden_layers: 3 }), INDEX, 'model.layers.2.'],
    ['a shape against config.json', (f) => editJson(f, 'config.json', { intermediate_size: 120 }), 'model-0000', '112'],
    ['no config.json', (f) => f.delete('config.json'), 'config.json', 'no such file'],
    ['no weights at all', (f) => f.delete(INDEX), 'model.safetensors', 'no such file'],
  ])('%s is refused', async (_, edit, file, told) => {
    const error = await refused(load(await edited(edit)), 'bad_model')
    expect(error.where).toContain(file)
    expect(error.got).toContain(told)
  })

  it('an abort while it loads frees everything', async () => {
    const backend = createReferenceBackend()
    const abort = new AbortController()
    const loading = loadModel({
      engine: new Engine(backend),
      source: memorySource(await filesOf(path)),
      signal: abort.signal,
      onProgress: () => abort.abort(),
    })
    await refused(loading, 'aborted')
    expect(backend.allocated()).toBe(0)
  })

  it('no room for the weights frees everything', async () => {
    const backend = createReferenceBackend()
    const full = { ...backend, alloc: () => backend.alloc([{ label: 'all', bytes: Number.MAX_SAFE_INTEGER - 3 }]) }
    const loading = loadModel({ engine: new Engine(full), source: memorySource(await filesOf(path)) })
    await refused(loading, 'out_of_memory')
  })
})

describe('a tokenizer', () => {
  it('without a vocabulary is refused', async () => {
    const files = await filesOf(needlePath)
    editJson(files, 'tokenizer.json', { model: { type: 'WordLevel', unk_token: '<unk>' } })
    const error = await refused(load(files), 'bad_model')
    expect(error.where).toBe('tokenizer.json')
  })
})

describe('a folder on disk', () => {
  let outer: string
  let folder: string
  beforeAll(async () => {
    outer = await mkdtemp(join(tmpdir(), 'pariskv-'))
    folder = join(outer, 'model')
    await mkdir(join(folder, 'sub'), { recursive: true })
    await writeFile(join(outer, 'secret.json'), '{"secret":true}')
    await writeFile(join(folder, 'inside.json'), '{"inside":true}')
    await symlink('inside.json', join(folder, 'link.json'))
    await symlink('../secret.json', join(folder, 'out.json'))
    await symlink('..', join(folder, 'up'))
    await symlink('nowhere', join(folder, 'dangling.json'))
  })
  afterAll(() => rm(outer, { recursive: true }))

  it('reads its files, ranges of them, and links among them', async () => {
    const source = await openModelFolder(folder)
    expect(await source.list()).toEqual(expect.arrayContaining(['inside.json', 'link.json']))
    expect(await source.size('inside.json')).toBe(15)
    expect(new TextDecoder().decode(await source.read('inside.json', 2, 8))).toBe('inside')
    expect(await source.read('link.json')).toEqual(await source.read('inside.json'))
    await refused(source.read('inside.json', 10, 20), 'bad_model')
  })

  it.each([
    'out.json',
    'up/secret.json',
    '../secret.json',
    '/etc/passwd',
    'sub/../../secret.json',
    'sub',
    'dangling.json',
    '',
    '.',
    'a\0b',
    'C:\\a',
  ])('refuses %j', async (name) => {
    const source = await openModelFolder(folder)
    await refused(source.read(name), 'bad_model')
    await refused(source.size(name), 'bad_model')
  })

  it('refuses a pipe at once', async () => {
    execFileSync('mkfifo', [join(folder, 'model.safetensors')])
    const source = await openModelFolder(folder)
    const error = await refused(source.size('model.safetensors'), 'bad_model')
    expect(error.got).toBe('no plain file')
  })

  it('refuses what is no folder', async () => {
    await refused(openModelFolder(join(folder, 'absent')), 'bad_model')
    await refused(openModelFolder(join(folder, 'inside.json')), 'bad_model')
  })

  it('may itself be reached through a link', async () => {
    await symlink('model', join(outer, 'alias'))
    expect(await (await openModelFolder(join(outer, 'alias'))).size('inside.json')).toBe(15)
  })
})
