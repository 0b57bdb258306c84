import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { createClient } from '../../sdk/http/client.ts'
import { root, startProcess } from './processes.ts'

const folder = join(root, 'examples/06-gpu-function')
let started: ReturnType<typeof startProcess> | undefined
afterAll(() => started?.child.kill('SIGKILL'))

test('the GPU function warms up, serves a session and ends with 0', async () => {
  const program = ['node_modules/tsx/dist/cli.mjs', join(folder, 'server.ts')]
  started = startProcess(process.execPath, program, {
    PORT: '0',
    HOST: '127.0.0.1',
    PARISKV_TOKENS: 'other, se=cret=me',
  })
  const url = await started.line(/listening on (\S+)/)
  await expect.poll(async () => (await fetch(`${url}/ping`)).status, { timeout: 60_000 }).toBe(200)
  const client = createClient({ url, token: 'se=cret' })
  const session = await client.createSession({ layers: 1, queryHeads: 1, kvHeads: 1, headDim: 8, capacity: 4 })
  const row = Float32Array.of(1, 0.5, 0, 0, 0, 0, 0, 0)
  const { output } = await session.step(0, { keys: row, values: row, queries: row })
  expect([...output.slice(0, 2)]).toEqual([1, 0.5])
  started.child.kill('SIGTERM')
  expect(await started.exit).toEqual([0, null])
})

test('its Dockerfile copies what is there, and its package names what it imports', () => {
  const dockerfile = readFileSync(join(folder, 'Dockerfile'), 'utf8')
  const copied = [...dockerfile.matchAll(/^COPY (\S+) /gm)].map(([, name]) => name)
  expect(copied).toEqual(['package.json', 'server.ts'])
  for (const name of copied) expect(existsSync(join(folder, name)), name).toBe(true)
  const { dependencies } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as { dependencies: object }
  const own = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    version: string
    peerDependencies: Record<string, string>
  }
  expect(Object.keys(dependencies)).toEqual(['hono', 'pariskv', 'webgpu'])
  expect(dependencies).toMatchObject({ hono: own.peerDependencies.hono, pariskv: `^${own.version}` })
})
