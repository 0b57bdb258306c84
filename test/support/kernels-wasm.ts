import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, statSync } from 'node:fs'

const root = new URL('../../', import.meta.url)
const output = new URL('build/kernels.wasm', root)

/** `build/kernels.wasm`, compiled; built first where it is missing or older than `assembly/`. */
export function compileKernels(): WebAssembly.Module {
  return new WebAssembly.Module(kernelBytes())
}

/** The bytes of the module. */
export function kernelBytes(): Uint8Array<ArrayBuffer> {
  if (!existsSync(output) || statSync(output).mtimeMs < newestSource()) buildKernels(output)
  return new Uint8Array(readFileSync(output))
}

/** Builds into a file of its own and renames, so that test processes side by side never read half a module. */
export function buildKernels(to: URL): void {
  mkdirSync(new URL('.', to), { recursive: true })
  const temporary = new URL(`${to.pathname.split('/').pop()}.${process.pid}`, to)
  const asc = new URL('node_modules/assemblyscript/bin/asc.js', root).pathname
  const args = [asc, '--config', 'assembly/asconfig.json', '--outFile', temporary.pathname]
  execFileSync(process.execPath, args, { cwd: root, stdio: 'pipe' })
  renameSync(temporary, to)
}

function newestSource(): number {
  const folder = new URL('assembly/', root)
  return Math.max(...readdirSync(folder).map((name) => statSync(new URL(name, folder)).mtimeMs))
}
