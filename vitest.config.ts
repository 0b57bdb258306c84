import { cloudflareTest } from '@cloudflare/vitest-pool-workers'
import { defineConfig } from 'vitest/config'

// workerd needs nothing from the network.
process.env.CLOUDFLARE_CF_FETCH_ENABLED ??= 'false'
process.env.WRANGLER_SEND_METRICS ??= 'false'

// A software GPU's compiler takes and frees so much memory that giving it back at once costs a third of the time. Large
// buffers stay mappings of their own, which cost nothing until they are used.
process.env.MALLOC_TRIM_THRESHOLD_ ??= String(2 ** 30)
process.env.MALLOC_MMAP_THRESHOLD_ ??= String(2 ** 25)

/** Tests that run inside workerd. */
const WORKERS = 'test/adapters/workers/**/*.test.ts'

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: 'node',
          include: ['test/**/*.test.ts'],
          exclude: [WORKERS, '**/node_modules/**'],
          pool: 'forks',
          maxWorkers: 2,
          // A worker's files share its process, and so its GPU device with every pipeline compiled so far.
          isolate: false,
          // Node 20 has a WebSocket client, but behind this.
          execArgv: ['--experimental-websocket'],
          testTimeout: 60_000,
          hookTimeout: 60_000,
        },
      },
      {
        plugins: [
          cloudflareTest({
            wrangler: { configPath: './wrangler.toml' },
            miniflare: {
              cf: false,
              bindings: { PARISKV_TOKENS: 'token-of-alice=alice,token-of-bob=bob', PARISKV_METRICS_TOKEN: 'm' },
            },
          }),
        ],
        test: {
          name: 'workers',
          include: [WORKERS],
          maxWorkers: 1,
          sequence: { groupOrder: 1 },
          testTimeout: 60_000,
          hookTimeout: 60_000,
        },
      },
    ],
  },
})
