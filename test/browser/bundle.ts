import { build, type Plugin } from 'esbuild'
import { BUNDLE, testPath } from '../support/suites.ts'

const root = testPath('..')

/** Some files of test/support do their work another way in a browser, in files of the same name. */
const inBrowser: Plugin = {
  name: 'in-browser',
  setup({ onResolve }) {
    onResolve({ filter: /^\.\.?\/(.*\/)?(gpu-source|kernels-wasm)\.ts$/ }, ({ path }) => ({
      path: testPath(`browser/${path.split('/').pop()}`),
    }))
  },
}

/**
 * Bundles suites, page.ts and the adapter for browsers. Each keeps its place, so that addresses relative to it hold.
 * @param suites paths below test/
 * @returns each text by its path from the root of the repository, with a slash before it
 */
export async function bundleSuites(suites: readonly string[]): Promise<ReadonlyMap<string, string>> {
  const { outputFiles } = await build({
    ...BUNDLE,
    entryPoints: [...suites, 'browser/page.ts', '../adapters/browser.ts'].map(testPath),
    alias: { ...BUNDLE.alias, 'node:fs': testPath('browser/fs.ts'), 'node:crypto': testPath('browser/crypto.ts') },
    define: { 'process.env.PARISKV_TEST': JSON.stringify(process.env.PARISKV_TEST ?? '') },
    plugins: [inBrowser],
    platform: 'browser',
    target: 'es2022',
    splitting: true,
    chunkNames: 'chunks/[hash]',
    outbase: root,
    outdir: root,
    write: false,
  })
  return new Map(outputFiles.map(({ path, text }) => [`/${path.slice(root.length)}`, text]))
}
