import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { openModelFolder } from '../../adapters/node-files.ts'
import type { Backend } from '../../sdk/backend.ts'
import { Engine } from '../../sdk/engine.ts'
import { loadModel, type Model } from '../../sdk/llm/index.ts'
import { badModel, type ModelSource } from '../../sdk/llm/source.ts'

/** The four loader fixtures; see models/README.md. */
export const FIXTURES = [
  'llama3-rope-scaled-bf16',
  'llama-tied-f16-sharded',
  'qwen2-bias-f32',
  'qwen3-untied-bf16',
] as const

/** What a fixture's golden.json holds. */
export interface Golden {
  readonly input_ids: number[]
  readonly positions: number[]
  readonly logits_f32: number[][]
  readonly greedy_from_first_50: number[]
}

export const fixturePath = (name: string) => fileURLToPath(new URL(`models/${name}`, import.meta.url))
export const needlePath = fileURLToPath(new URL('../../examples/models/needle-9m', import.meta.url))

export const goldenOf = <T>(path: string) => JSON.parse(readFileSync(`${path}/golden.json`, 'utf8')) as T

/** A model of a folder on a backend that stays the caller's. */
export async function modelOn(backend: Backend, path: string): Promise<Model> {
  return loadModel({ engine: new Engine(backend), source: await openModelFolder(path) })
}

export type Files = Map<string, Uint8Array>

/** All files of a folder, to be changed. */
export async function filesOf(path: string): Promise<Files> {
  const source = await openModelFolder(path)
  const files = new Map<string, Uint8Array>()
  for (const name of await source.list()) files.set(name, await source.read(name))
  return files
}

/** A folder in memory. */
export function memorySource(files: Files): ModelSource {
  const file = (name: string) => {
    const bytes = files.get(name)
    if (!bytes) throw badModel(name, 'no such file', 'every file of the model', 'Take it from its source again.')
    return bytes
  }
  return {
    name: 'memory',
    list: async () => [...files.keys()],
    size: async (name) => file(name).length,
    read: async (name, from = 0, to) => {
      const bytes = file(name)
      if ((to ?? 0) > bytes.length) throw badModel(name, `${bytes.length} bytes`, `at least ${to}`, 'Take it again.')
      return bytes.slice(from, to)
    },
  }
}

/** Replaces fields of a JSON file; undefined removes one. */
export function editJson(files: Files, name: string, fields: Record<string, unknown>): void {
  const json = JSON.parse(new TextDecoder().decode(files.get(name))) as Record<string, unknown>
  files.set(name, new TextEncoder().encode(JSON.stringify({ ...json, ...fields })))
}

/** The largest difference of two vectors. */
export function largestDifference(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let most = 0
  for (let i = 0; i < Math.max(a.length, b.length); i++) {
    const difference = Math.abs(a[i] - b[i])
    if (!(difference <= most)) most = difference
  }
  return most
}
