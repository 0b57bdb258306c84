import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    pool: 'forks',
    maxWorkers: 2,
    // A worker's files share its process, and so its GPU device with every pipeline compiled so far.
    isolate: false,
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
})
