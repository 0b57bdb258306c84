import { execFile } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { root } from '../adapters/processes.ts'
import { kernelBytes } from '../support/kernels-wasm.ts'

export { root }

const run = promisify(execFile)

export interface Manifest {
  readonly exports: Readonly<Record<string, unknown>>
  readonly bin: Readonly<Record<string, string>>
  readonly dependencies: Readonly<Record<string, string>>
  readonly peerDependencies: Readonly<Record<string, string>>
}

/** A package as it would be published, and a project that has it installed. */
export interface Staged {
  readonly tarball: string
  /** The folder that was packed. */
  readonly source: string
  readonly project: string
  readonly manifest: Manifest
  remove(): void
}

/** Builds into a folder of its own, packs it and installs the tarball into an empty project, all offline. */
export async function stagePackage(): Promise<Staged> {
  const folder = mkdtempSync(join(tmpdir(), 'pariskv-pack-'))
  const source = join(folder, 'source')
  const project = join(folder, 'project')
  mkdirSync(join(source, 'dist/build'), { recursive: true })
  const tsc = join(root, 'node_modules/.bin/tsc')
  await run(tsc, ['-p', 'tsconfig.build.json', '--outDir', join(source, 'dist')], { cwd: root })
  writeFileSync(join(source, 'dist/build/kernels.wasm'), kernelBytes())
  for (const name of ['package.json', 'README.md', 'CHANGELOG.md', 'LICENSE'])
    cpSync(join(root, name), join(source, name))
  await run('npm', ['pack', '--ignore-scripts', '--offline', '--pack-destination', folder], { cwd: source })
  const tarball = join(folder, readdirSync(folder).find((name) => name.endsWith('.tgz')) ?? 'none.tgz')
  const manifest = JSON.parse(readFileSync(join(source, 'package.json'), 'utf8')) as Manifest
  await install(tarball, project, manifest)
  return { tarball, source, project, manifest, remove: () => rmSync(folder, { recursive: true, force: true }) }
}

/** What npm would do: the tarball unpacked below node_modules, its dependencies and peers beside it, as links here. */
async function install(tarball: string, project: string, { dependencies, peerDependencies }: Manifest): Promise<void> {
  const own = join(project, 'node_modules/pariskv')
  mkdirSync(own, { recursive: true })
  await run('tar', ['-xzf', tarball, '-C', own, '--strip-components=1'])
  writeFileSync(join(project, 'package.json'), JSON.stringify({ private: true, type: 'module' }))
  for (const name of [...Object.keys(dependencies), ...Object.keys(peerDependencies), '@types/node']) {
    const to = join(project, 'node_modules', name)
    mkdirSync(dirname(to), { recursive: true })
    symlinkSync(join(root, 'node_modules', name), to)
  }
}
