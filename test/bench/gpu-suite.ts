/**
 * Bundles the kernel, cache, retrieve, attend and session suites into one ESM file that needs only Node and the package
 * webgpu, for a GPU machine without packages: npx tsx test/bench/gpu-suite.ts OUT.mjs; then node OUT.mjs.
 */
import { build } from 'esbuild'
import { BUNDLE, SUITES, testPath } from '../support/suites.ts'

const outfile = process.argv[2] ?? 'build/gpu-suite.mjs'
await build({
  ...BUNDLE,
  stdin: {
    contents: [
      ...SUITES.map((name) => `import ${JSON.stringify(testPath(name))}`),
      `import { runAll } from ${JSON.stringify(testPath('support/bare-vitest.ts'))}`,
      'const { failed } = await runAll()',
      'if (failed > 0) process.exitCode = 1',
    ].join('\n'),
    resolveDir: testPath('.'),
    loader: 'ts',
  },
  platform: 'node',
  external: ['webgpu'],
  banner: {
    js: "import { createRequire as __require } from 'node:module'; const require = __require(import.meta.url)",
  },
  outfile,
})
console.log(`${SUITES.length} suites in ${outfile}`)
