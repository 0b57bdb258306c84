import { execFile } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { gzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createClient } from '../../sdk/http/client.ts'
import { kernelBytes } from '../support/kernels-wasm.ts'
import { type HeldMemory, openInspector } from './isolate.ts'
import { root, startProcess } from './processes.ts'

const wrangler = join(root, 'node_modules/wrangler/bin/wrangler.js')
const OFFLINE = { CI: '1', CLOUDFLARE_CF_FETCH_ENABLED: 'false', WRANGLER_SEND_METRICS: 'false' }
const MIB = 2 ** 20

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'pariskv-worker-'))
  kernelBytes()
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

test('the bundle of the Worker takes at most 1 MB, compressed', async () => {
  const args = [wrangler, 'deploy', '--dry-run', '--outdir', join(folder, 'bundle')]
  await promisify(execFile)(process.execPath, args, { cwd: root, env: { ...process.env, ...OFFLINE } })
  const files = readdirSync(join(folder, 'bundle')).filter((name) => /\.(js|wasm)$/.test(name))
  expect(files).toHaveLength(2)
  const bytes = files.reduce((sum, name) => sum + gzipSync(readFileSync(join(folder, 'bundle', name))).length, 0)
  console.log(`the Worker's bundle: ${(bytes / 1000).toFixed(0)} kB gzip`)
  expect(bytes).toBeLessThan(1_000_000)
}, 120_000)

describe('the example of a Worker, in workerd', () => {
  let server: ReturnType<typeof startProcess>
  let url: string
  let inspectorPort: number
  beforeAll(async () => {
    inspectorPort = await freePort()
    const args = [
      'dev',
      '-c',
      'examples/07-worker/wrangler.toml',
      '--ip',
      '127.0.0.1',
      '--port',
      String(await freePort()),
    ]
    const own = [
      '--persist-to',
      join(folder, 'state'),
      '--var',
      'PARISKV_TOKENS:secret=me',
      '--inspector-port',
      String(inspectorPort),
    ]
    server = startProcess(process.execPath, [wrangler, ...args, ...own], OFFLINE)
    url = await server.line(/Ready on (http:\S+)/)
  }, 120_000)
  afterAll(async () => {
    server?.child.kill('SIGTERM')
    await server?.exit
  })

  test('answers beside the routes of its own', async () => {
    expect(await (await fetch(url)).text()).toBe('a model server\n')
    expect((await fetch(`${url}/ping`)).status).toBe(200)
    expect((await fetch(`${url}/v1/info`)).status).toBe(401)
  })

  test('a session of 64 MiB takes less than 100 MB', async () => {
    const client = createClient({ url, token: 'secret', chunkBytes: 2 * MIB })
    const shape = { layers: 4, queryHeads: 8, kvHeads: 8, headDim: 128, capacity: 3600, store: 'bf16' } as const
    const session = await client.createSession(shape)
    for (let layer = 0; layer < 4; layer++)
      for (let from = 0; from < 3600; from += 900) await session.append(layer, { keys: rows(900), values: rows(900) })
    await expect(session.append(0, { keys: rows(1), values: rows(1) })).rejects.toMatchObject({ code: 'capacity' })
    const inspector = await openInspector(inspectorPort)
    const seen: HeldMemory[] = []
    for (let step = 0; step < 60; step++) {
      const { output } = await session.attend(step % 4, { queries: rows(1) })
      expect(output.every(Number.isFinite)).toBe(true)
      if (step % 3 === 0) seen.push(await inspector.held())
    }
    inspector.close()
    const { memory } = (await session.stats()) as unknown as { memory: { total: number } }
    expect(memory.total).toBeGreaterThan(64 * MIB)
    const sizes = seen.map(({ heap, buffers, linear }) => {
      expect(linear).toBeGreaterThanOrEqual(memory.total)
      return (heap + buffers + linear) / 1e6
    })
    const most = Math.max(...sizes)
    const linear = Math.max(...seen.map((each) => each.linear)) / MIB
    console.log(
      `a session of ${(memory.total / MIB).toFixed(1)} MiB: its isolate holds at most ${most.toFixed(0)} MB, ${linear.toFixed(1)} MiB of them linear memory`,
    )
    expect(most).toBeLessThan(100)
  }, 180_000)
})

/** keys, values or queries [8, tokens, 128]. */
function rows(tokens: number): Float32Array {
  return Float32Array.from({ length: 8 * tokens * 128 }, (_, i) => Math.sin(i * 1.7))
}

async function freePort(): Promise<number> {
  const probe = createServer()
  await new Promise<void>((resolve) => probe.listen(0, '127.0.0.1', resolve))
  const { port } = probe.address() as { port: number }
  await new Promise((resolve) => probe.close(resolve))
  return port
}
