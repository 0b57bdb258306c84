import { readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { BuildOptions } from 'esbuild'

const tests = new URL('../', import.meta.url)

/** The absolute path of a file below test/. */
export const testPath = (name: string) => fileURLToPath(new URL(name, tests))

/** Files that only vitest on Node can run, with the reason. */
export const LEFT_OUT: Readonly<Record<string, string>> = {
  'session/heap.test.ts': 'it asks V8 to collect garbage and counts the bytes of the process',
}

/** The suites of the backends and of what stands on them, as paths below test/. */
export const SUITES: readonly string[] = ['kernels', 'golden', 'cache', 'retrieve', 'attend', 'session'].flatMap(
  (folder) =>
    readdirSync(new URL(folder, tests))
      .map((name) => `${folder}/${name}`)
      .filter((name) => name.endsWith('.test.ts') && !(name in LEFT_OUT)),
)

/** What every bundle of suites has in common: ESM, with bare-vitest in vitest's place. */
export const BUNDLE = {
  alias: { vitest: testPath('support/bare-vitest.ts') },
  bundle: true,
  ignoreAnnotations: true,
  format: 'esm',
} satisfies BuildOptions
