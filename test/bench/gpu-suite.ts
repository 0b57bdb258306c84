/**
 * Bundles the kernel, cache, retrieve, attend and session suites into one ESM file that needs only Node and the package
 * webgpu, for a GPU machine without packages: npx tsx test/bench/gpu-suite.ts OUT.mjs; then node OUT.mjs.
 */
import { readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const tests = new URL('../', import.meta.url)
const LEFT_OUT = ['session/heap.test.ts']
const files = ['kernels', 'golden', 'cache', 'retrieve', 'attend', 'session'].flatMap((folder) =>
  readdirSync(new URL(folder, tests))
    .map((name) => `${folder}/${name}`)
    .filter((name) => name.endsWith('.test.ts') && !LEFT_OUT.includes(name)),
)
const outfile = process.argv[2] ?? 'build/gpu-suite.mjs'
const path = (name: string) => fileURLToPath(new URL(name, tests))
await build({
  stdin: {
    contents: [
      ...files.map((name) => `import ${JSON.stringify(path(name))}`),
      `import { runAll } from ${JSON.stringify(path('support/bare-vitest.ts'))}`,
      'await runAll()',
    ].join('\n'),
    resolveDir: path('.'),
    loader: 'ts',
  },
  alias: { vitest: path('support/bare-vitest.ts') },
  bundle: true,
  ignoreAnnotations: true,
  platform: 'node',
  format: 'esm',
  external: ['webgpu'],
  banner: {
    js: "import { createRequire as __require } from 'node:module'; const require = __require(import.meta.url)",
  },
  outfile,
})
console.log(`${files.length} suites in ${outfile}`)
