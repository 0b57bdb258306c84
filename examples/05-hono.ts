/** The handler as one route of a Hono app of yours, beside your own; called here without a network. */
import { Hono } from 'hono'
import { createEngine } from 'pariskv'
import { createClient } from 'pariskv/client'
import { createApp } from 'pariskv/hono'

const random = (length: number) => Float32Array.from({ length }, () => Math.random() * 2 - 1)

const kv = createApp({
  // Opened at the first request, and again after a lost device.
  engine: () => createEngine(),
  auth: { tokens: new Map([['secret', 'tenant-a']]) },
  limits: { bytes: 2 ** 30, sessions: 16 },
  logger: ({ method, route, status, ms }) => console.log(`  ${method} ${route} ${status} ${ms.toFixed(1)} ms`),
})
const app = new Hono()
app.get('/', (c) => c.text('a model server'))
app.route('/kv', kv)

const client = createClient({ url: 'http://here/kv', token: 'secret', fetch: (request) => app.fetch(request) })
const session = await client.createSession({ layers: 1, queryHeads: 2, kvHeads: 1, headDim: 64, capacity: 8192 })
await session.append(0, { keys: random(5000 * 64), values: random(5000 * 64) })
const { lse } = await session.attend(0, { queries: random(2 * 64) })
console.log(
  `attended to ${session.length()} tokens on ${session.opened.backend}: lse ${[...lse].map((x) => x.toFixed(3))}`,
)
await session.dispose()
await kv.dispose()
