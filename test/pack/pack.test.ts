import { execFile } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { publint } from 'publint'
import { formatMessage } from 'publint/utils'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { root, type Staged, stagePackage } from './stage.ts'

const run = promisify(execFile)
const bin = (name: string) => join(root, 'node_modules/.bin', name)

describe('the packed package', () => {
  let staged: Staged
  beforeAll(async () => {
    staged = await stagePackage()
  }, 180_000)
  afterAll(() => staged?.remove())

  /** Writes a file into the project and runs it on Node. */
  async function runScript(name: string, text: string): Promise<string> {
    writeFileSync(join(staged.project, name), text)
    const { stdout } = await run(process.execPath, [name], { cwd: staged.project, timeout: 60_000 })
    return stdout.trim()
  }

  test('publint has nothing to say', async () => {
    const { messages, pkg } = await publint({ pkgDir: staged.source, pack: false, strict: true })
    expect(messages.map((message) => formatMessage(message, pkg))).toEqual([])
  })

  test('attw finds no wrong types', async () => {
    const args = ['--profile', 'esm-only', '--format', 'json', '--no-color', staged.tarball]
    const { stdout } = await run(bin('attw'), args, { maxBuffer: 2 ** 26, timeout: 120_000 })
    const { analysis, problems } = JSON.parse(stdout) as {
      analysis: { entrypoints: Record<string, unknown> }
      problems: Record<string, { resolutionKind?: string }[]>
    }
    expect(Object.keys(analysis.entrypoints)).toEqual(Object.keys(staged.manifest.exports))
    // The profile leaves out node10 and CommonJS, which takes ES modules by a dynamic import only.
    const left = Object.values(problems).flat()
    expect(left.filter(({ resolutionKind: kind }) => kind !== 'node10' && kind !== 'node16-cjs')).toEqual([])
  })

  test('a session works in Node ESM', async () => {
    const printed = await runScript('session.mjs', SESSION)
    expect(printed).toBe('wasm 1,0.5')
  })

  test('every export that Node may load loads', async () => {
    const names = Object.keys(staged.manifest.exports).filter((name) => !RUNTIMES.test(name) && !name.endsWith('.json'))
    const imports = names.map((name) => `console.log(Object.keys(await import('pariskv${name.slice(1)}')).length > 0)`)
    const printed = await runScript('exports.mjs', imports.join('\n'))
    expect(printed.split('\n')).toEqual(names.map(() => 'true'))
  })

  test('the command says how it is used', async () => {
    const command = join(staged.project, 'node_modules/pariskv', staged.manifest.bin.pariskv)
    expect(readFileSync(command, 'utf8').split('\n')[0]).toBe('#!/usr/bin/env node')
    const { stdout } = await run(process.execPath, [command, '--help'], { cwd: staged.project })
    expect(stdout).toContain('pariskv serve')
  })

  test.each(['nodenext', 'bundler'])('its types compile under moduleResolution %s', async (resolution) => {
    const module = resolution === 'nodenext' ? 'nodenext' : 'esnext'
    const config = {
      compilerOptions: {
        ...{ module, moduleResolution: resolution, target: 'es2022', lib: ['es2023', 'dom', 'dom.iterable', 'esnext'] },
        ...{ strict: true, noEmit: true, skipLibCheck: true, types: ['node'] },
      },
      files: ['types.ts'],
    }
    writeFileSync(join(staged.project, `tsconfig.${resolution}.json`), JSON.stringify(config))
    writeFileSync(join(staged.project, 'types.ts'), TYPES)
    const compiled = await run(bin('tsc'), ['-p', `tsconfig.${resolution}.json`], { cwd: staged.project }).catch(
      (error: { stdout: string }) => error,
    )
    expect(compiled.stdout).toBe('')
  })
})

/** Subpaths that only another runtime can load. */
const RUNTIMES = /^\.\/(bun|deno|workers)$/

const SESSION = `
import { createEngine } from 'pariskv'
const engine = await createEngine({ device: 'wasm' })
const session = await engine.createSession({ layers: 1, queryHeads: 1, kvHeads: 1, headDim: 8, capacity: 4 })
const row = Float32Array.of(1, 0.5, 0, 0, 0, 0, 0, 0)
await session.append(0, { keys: row, values: row })
const { output } = await session.attend(0, { queries: row })
console.log(engine.info.backend, String([...output.slice(0, 2)]))
await engine.dispose()
`

const TYPES = `
import { createEngine, type Engine, ParisError, type Session } from 'pariskv'
const engine: Engine = await createEngine({ device: 'auto' })
const session: Session = await engine.createSession({ layers: 1, queryHeads: 1, kvHeads: 1, headDim: 8, capacity: 4 })
const { output }: { output: Float32Array } = await session.attend(0, { queries: new Float32Array(8) })
// @ts-expect-error a layer is a number
await session.attend('0', { queries: output })
export const codeOf = (error: unknown): string | undefined => (error instanceof ParisError ? error.code : undefined)
`
