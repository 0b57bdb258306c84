import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, statSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { BackendUnavailable } from '../../sdk/errors.ts'

const root = new URL('../../', import.meta.url)
const output = new URL('build/kernels.wasm', root)
const sources = new URL('assembly/', root)

/** `build/kernels.wasm`, compiled; built first where it is missing or older than `assembly/`. */
export function compileKernels(): WebAssembly.Module {
  return new WebAssembly.Module(kernelBytes())
}

/** The bytes of the module. */
export function kernelBytes(): Uint8Array<ArrayBuffer> {
  if (!existsSync(sources)) throw new BackendUnavailable('wasm', `no ${fileURLToPath(sources)}`, 'Run from a checkout.')
  if (!existsSync(output) || statSync(output).mtimeMs < newestSource()) buildKernels(output)
  return new Uint8Array(readFileSync(output))
}

/** Builds into a file of its own and renames, so that test processes side by side never read half a module. */
export function buildKernels(to: URL): void {
  mkdirSync(new URL('.', to), { recursive: true })
  const temporary = `${fileURLToPath(to)}.${process.pid}`
  const asc = fileURLToPath(new URL('node_modules/assemblyscript/bin/asc.js', root))
  const args = [asc, '--config', 'assembly/asconfig.json', '--outFile', temporary]
  execFileSync(process.execPath, args, { cwd: root, stdio: 'pipe' })
  renameSync(temporary, to)
}

function newestSource(): number {
  return Math.max(...readdirSync(sources).map((name) => statSync(new URL(name, sources)).mtimeMs))
}
