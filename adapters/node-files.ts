import { type FileHandle, open, readdir, realpath, stat } from 'node:fs/promises'
import { join, relative, resolve, sep } from 'node:path'
import { badModel, checkName, type ModelSource } from '../sdk/llm/source.ts'

/**
 * A model folder on disk. Nothing outside it is read, through symbolic links neither.
 * @param path of the folder
 * @throws ParisError `bad_model` where there is no such folder
 */
export async function openModelFolder(path: string): Promise<ModelSource> {
  const asked = resolve(path)
  const fix = 'Give the folder that holds config.json and the safetensors files.'
  const root = await realpath(asked).catch((cause) => {
    throw badModel(asked, 'no such folder', 'a model folder', fix, cause)
  })
  if (!(await stat(root)).isDirectory()) throw badModel(asked, 'a file', 'a model folder', fix)
  return {
    name: asked,
    async list() {
      const entries = await readdir(root, { withFileTypes: true })
      return entries.filter((entry) => !entry.isDirectory()).map(({ name }) => name)
    },
    size: (name) => withFile(root, name, async (file) => (await file.stat()).size),
    read: (name, from = 0, to) =>
      withFile(root, name, async (file) => readRange(file, name, from, to ?? (await file.stat()).size)),
  }
}

async function withFile<T>(root: string, name: string, use: (file: FileHandle) => Promise<T>): Promise<T> {
  const path = join(root, checkName(name, root))
  const real = await realpath(path).catch((cause) => {
    throw badModel(path, 'no such file', 'every file of the model', 'Take it from its source again.', cause)
  })
  const inside = relative(root, real)
  if (inside === '..' || inside.startsWith(`..${sep}`) || resolve(root, inside) !== real || inside === '') {
    const fix = 'Copy the folder with its links followed (cp -rL) and give the copy.'
    throw badModel(path, `a link to ${real}`, 'files inside the model folder', fix)
  }
  // Opening a pipe waits for its writer.
  if (!(await stat(real)).isFile()) throw badModel(path, 'no plain file', 'a plain file', 'Remove it.')
  const file = await open(real, 'r').catch((cause) => {
    throw badModel(
      path,
      `a file that cannot be read: ${(cause as Error).message}`,
      'a readable file',
      'Mend its rights.',
      cause,
    )
  })
  try {
    return await use(file)
  } finally {
    await file.close()
  }
}

async function readRange(file: FileHandle, name: string, from: number, to: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(to - from)
  for (let at = 0; at < bytes.length; ) {
    const { bytesRead } = await file.read(bytes, at, bytes.length - at, from + at)
    if (bytesRead === 0)
      throw badModel(name, `${from + at} bytes`, `at least ${to}`, 'Take the file from its source again.')
    at += bytesRead
  }
  return bytes
}
