import { execFile } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'

const root = resolve(import.meta.dirname, '..')
const KERNELS = [
  'attend',
  'coarse-collision',
  'coarse-signs',
  'dense',
  'encode',
  'gate',
  'linear',
  'lookup',
  'merge',
  'norm',
  'query',
  'rerank',
  'rope',
  'rotate',
  'select',
  'store',
  'topk',
]

/** Every file below a folder, as paths from the root. */
function files(folder: string, ending: string): string[] {
  if (!existsSync(join(root, folder))) return []
  return readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith(ending))
    .map((name) => join(folder, name))
}

const stems = (folder: string, ending: string) =>
  readdirSync(join(root, folder))
    .filter((name) => name.endsWith(ending))
    .map((name) => name.slice(0, -ending.length))

describe('the room rule', () => {
  test('sdk/kernels holds one file a kernel and nothing else', () => {
    expect(stems('sdk/kernels', '.ts').sort()).toEqual(KERNELS)
  })

  test('every kernel has its test', () => {
    expect(stems('test/kernels', '.test.ts').sort()).toEqual(KERNELS)
  })

  test.each([
    ['wgsl', '.wgsl'],
    ['assembly', '.ts'],
  ])('%s holds every kernel as soon as it holds one', (folder, ending) => {
    const present = existsSync(join(root, folder)) ? stems(folder, ending).filter((stem) => KERNELS.includes(stem)) : []
    expect(present.length === 0 ? KERNELS : present.sort()).toEqual(KERNELS)
  })

  test('no source file is longer than 300 lines', () => {
    const sources = ['sdk', 'adapters', 'examples', 'test', 'wgsl', 'assembly'].flatMap((folder) =>
      ['.ts', '.wgsl'].flatMap((ending) => files(folder, ending)),
    )
    const long = sources
      .filter((file) => !file.endsWith('sources.ts') && !file.includes('node_modules'))
      .filter((file) => readFileSync(join(root, file), 'utf8').split('\n').length > 301)
    expect(long).toEqual([])
  })
})

/** Layers of sdk/, lowest first: a file may import its own layer and those before it. */
const ORDER = [
  'config',
  'codec',
  'kernels',
  'backend',
  'cache',
  'retrieve',
  'attend',
  'session',
  'engine',
  'llm',
  'http',
  'index',
]
/** Files beside the folders that every layer may import; they import only one another. */
const LEAVES = ['errors', 'dtype', 'bytes', 'shape', 'safetensors', 'calls', 'input']

function layerOf(file: string): string {
  return relative('sdk', file).replace(/\.ts$/, '').split('/')[0]
}

function imports(file: string): string[] {
  const text = readFileSync(join(root, file), 'utf8')
  return [...text.matchAll(/^(?:import|export)[^'"]*?from '([^']+)'|^import '([^']+)'/gms)].map((m) => m[1] ?? m[2])
}

const localImports = (file: string) =>
  imports(file)
    .filter((name) => name.startsWith('.'))
    .map((name) => relative(root, resolve(root, dirname(file), name)))

describe('imports', () => {
  const sdk = files('sdk', '.ts').filter((file) => !file.startsWith('sdk/backends/') && file !== 'sdk/index.ts')

  test.each(sdk)('%s imports one way', (file) => {
    const own = layerOf(file)
    for (const target of localImports(file)) {
      const layer = layerOf(target)
      const allowed = LEAVES.includes(own)
        ? LEAVES.includes(layer)
        : LEAVES.includes(layer) || ORDER.indexOf(layer) <= ORDER.indexOf(own)
      expect(allowed, `${file} imports ${target}`).toBe(true)
      expect(target.startsWith('sdk/'), `${file} imports ${target}`).toBe(true)
    }
  })

  test.each(files('sdk/backends', '.ts'))('%s imports only kernels, codec and the backend seam', (file) => {
    for (const target of localImports(file)) {
      const layer = layerOf(target)
      const allowed =
        ['kernels', 'codec', 'backend', 'backends', ...LEAVES].includes(layer) || target.startsWith('wgsl/')
      expect(allowed, `${file} imports ${target}`).toBe(true)
    }
  })

  test('only adapters name a runtime', () => {
    const named = [...files('sdk', '.ts'), ...files('wgsl', '.ts').filter((f) => !f.endsWith('embed.ts'))].filter(
      (file) => {
        const text = readFileSync(join(root, file), 'utf8')
        return imports(file).some((name) => name.startsWith('node:')) || /\b(process|Deno|Bun|navigator)\./.test(text)
      },
    )
    expect(named).toEqual([])
  })
})

describe('the package', () => {
  const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    exports: Record<string, Record<string, unknown> | string>
    bin: Record<string, string>
  }

  test('every export has its source', () => {
    const targets = JSON.stringify(manifest.exports).match(/"\.\/dist\/[^"]+\.js"/g) ?? []
    expect(targets.length).toBeGreaterThan(0)
    for (const target of targets) {
      const source = target.slice(1, -1).replace('./dist/', '').replace(/\.js$/, '.ts')
      expect(existsSync(join(root, source)), source).toBe(true)
    }
  })

  test('each face has its subpath', () => {
    const sources = { hono: 'sdk/http/app', client: 'sdk/http/client', node: 'adapters/serve-node' }
    const all = {
      ...sources,
      bun: 'adapters/serve-bun',
      deno: 'adapters/serve-deno',
      workers: 'adapters/workers-handler',
    }
    for (const [name, source] of Object.entries(all))
      expect(manifest.exports[`./${name}`]).toEqual({ types: `./dist/${source}.d.ts`, default: `./dist/${source}.js` })
    expect(manifest.bin).toEqual({ pariskv: './dist/adapters/cli.js' })
  })

  test.each(['.', 'examples/07-worker'])('the wrangler.toml in %s names what is there', (folder) => {
    const config = readFileSync(join(root, folder, 'wrangler.toml'), 'utf8')
    const main = /^main = "(.+)"$/m.exec(config)?.[1] ?? 'none'
    const [, name] = /^class_name = "(.+)"$/m.exec(config) ?? []
    expect(readFileSync(join(root, folder, main), 'utf8')).toMatch(new RegExp(`^export \\{.*\\b${name}\\b`, 'm'))
    expect(config).toContain(`new_sqlite_classes = ["${name}"]`)
  })

  test('the runtimes map to their adapters', () => {
    const conditions = manifest.exports['.'] as Record<string, { default: string }>
    expect(Object.keys(conditions)).toEqual(['workerd', 'bun', 'deno', 'node', 'browser', 'default'])
    for (const [runtime, adapter] of [
      ['workerd', 'workers'],
      ['bun', 'bun'],
      ['deno', 'deno'],
      ['node', 'node'],
      ['browser', 'browser'],
    ])
      expect(conditions[runtime].default).toBe(`./dist/adapters/${adapter}.js`)
  })
})

describe('examples', () => {
  const examples = readdirSync(join(root, 'examples')).filter((name) => name.endsWith('.ts'))

  test.each(examples)(
    '%s runs',
    async (name) => {
      const args = ['--import', 'tsx', join('examples', name)]
      const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: root, timeout: 170_000 })
      expect(stdout.length).toBeGreaterThan(50)
    },
    180_000,
  )
})
