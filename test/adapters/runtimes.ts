import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { type Served, TOKENS } from '../http/support.ts'
import { root, startProcess } from './processes.ts'

/** A runtime that can run `server.ts`: its program, and what stands before the file. */
export interface RuntimeCase {
  readonly name: 'node' | 'bun' | 'deno'
  readonly program: string
  readonly args: readonly string[]
}

const tsx = resolve(root, 'node_modules/tsx/dist/cli.mjs')

/** Node; Bun and Deno from this folder's package or from the PATH, where they are. */
export const runtimeCases: readonly (RuntimeCase | { readonly name: string; readonly program: undefined })[] = [
  { name: 'node', program: process.execPath, args: [tsx] },
  found('bun', ['run']),
  found('deno', ['run', '--allow-all', '--no-lock']),
]

function found(name: 'bun' | 'deno', args: readonly string[]) {
  const own = resolve(import.meta.dirname, 'node_modules/.bin', name)
  const program = [own, name].find((path) =>
    path === own ? existsSync(own) : spawnSync(path, ['--version']).status === 0,
  )
  return { name, program, args } as RuntimeCase | { name: string; program: undefined }
}

/** A server in a process of its own; without tokens its auth is off. `close` sends SIGTERM and tells how it ended. */
export async function startServer({ program, args }: RuntimeCase, known = TOKENS) {
  const tokens = [...known].map(([token, tenant]) => `${token}=${tenant}`).join()
  const { child, exit, line, lines } = startProcess(program, [...args, 'test/adapters/server.ts'], {
    PARISKV_TOKENS: tokens,
  })
  const url = await line(/ listens on (\S+)$/)
  const close = async () => {
    child.kill('SIGTERM')
    const [status, signal] = await exit
    return { status, signal, lines }
  }
  return { url, close, kill: () => child.kill('SIGKILL') }
}

/** The same as the suite of HTTP takes it. */
export async function openServed(runtime: RuntimeCase): Promise<Served> {
  const { url, close } = await startServer(runtime)
  return { fetch: (path, init) => fetch(url + path, init), close: async () => void (await close()) }
}
