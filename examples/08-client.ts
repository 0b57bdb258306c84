/** The client against a server on this machine: a prompt in chunks, steps, a fork, a snapshot. */
import { createClient, mergePartials } from 'pariskv/client'
import { serve } from 'pariskv/node'

const random = (length: number) => Float32Array.from({ length }, () => Math.random() * 2 - 1)

const server = await serve({ port: 0, auth: 'off' })
const client = createClient({ url: server.url, chunkBytes: 2 ** 20 })
const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 }
const session = await client.createSession({ ...shape, capacity: 8192, store: 'bf16', ttl: 600 })
console.log(`session ${session.id.slice(0, 4)}… on ${session.opened.backend}`)

const tokens = 4096
const rows = (count: number) => ({ keys: random(2 * count * 64), values: random(2 * count * 64) })
for (let layer = 0; layer < shape.layers; layer++)
  await session.append(layer, rows(tokens), {
    onProgress: ({ done, total }) => console.log(`layer ${layer}: ${done} of ${total} tokens`),
  })

// One decode step of a token: each layer appends and attends in one request.
for (let layer = 0; layer < shape.layers; layer++) {
  const { output } = await session.step(layer, { ...rows(1), queries: random(4 * 64) })
  console.log(`layer ${layer}: output of ${output.length} numbers, ${session.length(layer)} tokens`)
}

const fork = await session.fork()
await fork.truncate(1000)
console.log(`the fork goes on from ${fork.length()} tokens, the session from ${session.length()}`)

// Exact attention in two ranges, as two hosts would share a sequence.
const queries = random(4 * 64)
const halves = [
  await session.attendRange(0, { queries, from: 0, to: 2000 }),
  await session.attendRange(0, { queries, from: 2000, to: session.length() }),
]
console.log(`merged lse ${[...mergePartials(halves).lse].map((x) => x.toFixed(3))}`)

const copy = await client.restore(session.snapshot())
console.log(`restored ${copy.length()} tokens from a snapshot`)
await server.close()
