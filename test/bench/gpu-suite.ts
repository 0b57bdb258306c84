/**
 * Bundles the kernel, cache, retrieve, attend and session suites into one ESM file that needs only Node and the package
 * webgpu, for a GPU machine without packages: npx tsx test/bench/gpu-suite.ts OUT.mjs; then node OUT.mjs. With a second
 * argument, folders and files below test/ instead, as `llm/golden.test.ts`; those of models look for `models` beside the
 * bundle and for `examples` two folders above it.
 */
import { build } from 'esbuild'
import { BUNDLE, SUITES, testPath } from '../support/suites.ts'

/** Suites of models that run on a backend. */
const LLM = ['golden', 'offload', 'generate'].map((name) => `llm/${name}.test.ts`)

const outfile = process.argv[2] ?? 'build/gpu-suite.mjs'
const wanted = process.argv[3]?.split(',')
const suites = wanted ? SUITES.concat(LLM).filter((name) => wanted.some((part) => name.startsWith(part))) : SUITES
await build({
  ...BUNDLE,
  stdin: {
    contents: [
      ...suites.map((name) => `import ${JSON.stringify(testPath(name))}`),
      `import { runAll } from ${JSON.stringify(testPath('support/bare-vitest.ts'))}`,
      'const { failed } = await runAll()',
      'if (failed > 0) process.exitCode = 1',
    ].join('\n'),
    resolveDir: testPath('.'),
    loader: 'ts',
  },
  platform: 'node',
  target: 'node20',
  external: ['webgpu'],
  banner: {
    js: "import { createRequire as __require } from 'node:module'; const require = __require(import.meta.url)",
  },
  outfile,
})
console.log(`${suites.length} suites in ${outfile}`)
