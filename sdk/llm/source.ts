import { describe, ParisError } from '../errors.ts'

/** Files of one model folder, wherever they are. Names are relative, with `/` between folders. */
export interface ModelSource {
  /** What the folder is called in messages. */
  readonly name: string
  /** Names of the files at hand. */
  list(): Promise<string[]>
  /** Bytes of a file. @throws ParisError `bad_model` where it is missing or outside the folder */
  size(name: string): Promise<number>
  /**
   * Bytes [from, to) of a file, the whole of it by default; a copy of its own.
   * @throws ParisError `bad_model` where it is missing, shorter than `to`, or outside the folder
   */
  read(name: string, from?: number, to?: number): Promise<Uint8Array>
}

/** A model folder that cannot be used, with the file to look at. */
export function badModel(file: string, got: string, want: string, fix: string, cause?: unknown): ParisError {
  return new ParisError('bad_model', { where: file, got, want, fix, cause })
}

/** The largest JSON file that is read whole. */
const MAX_JSON = 64 * 1024 * 1024

/**
 * A name that stays inside its folder: relative, without `..`, empty parts, backslashes, colons or control characters.
 * @throws ParisError `bad_model`
 */
export function checkName(name: unknown, where: string): string {
  const parts = typeof name === 'string' ? name.split('/') : []
  const plain = (part: string) => part !== '' && part !== '.' && part !== '..' && !/[\\:\p{Cc}]/u.test(part)
  if (parts.length > 0 && parts.every(plain)) return name as string
  throw badModel(where, describe(name), 'a file inside the model folder', 'Take the folder from its source again.')
}

/**
 * A JSON object of the folder.
 * @throws ParisError `bad_model` where it is missing, above 64 MiB, or no JSON object
 */
export async function readJson(source: ModelSource, name: string): Promise<Record<string, unknown>> {
  const size = await source.size(name)
  if (size > MAX_JSON) throw badModel(name, `${size} bytes`, `at most ${MAX_JSON}`, 'No such file is that large.')
  const bytes = await source.read(name)
  let value: unknown
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch (cause) {
    throw badModel(name, 'a file that is not JSON', 'a JSON object', 'Take the file from its source again.', cause)
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  throw badModel(name, describe(value), 'a JSON object', 'Take the file from its source again.')
}

/** As `readJson`, or undefined where the folder has no such file. */
export async function readJsonIfThere(
  source: ModelSource,
  name: string,
  files: readonly string[],
): Promise<Record<string, unknown> | undefined> {
  return files.includes(name) ? readJson(source, name) : undefined
}
