/**
 * What the handler costs over loopback: npm run bench:http [-- --quick]. Sessions of 4 layers with 16,384 tokens on
 * WebAssembly; one token is 4 layer steps, one behind the other, on one connection. The server is a process of its own.
 */
import { Agent, request } from 'node:http'
import { fileURLToPath } from 'node:url'
import { createEngine } from '../../adapters/node.ts'
import { createClient, type RemoteSession } from '../../sdk/http/client.ts'
import { buildFrame, SAFETENSORS } from '../../sdk/http/tensors.ts'
import { startProcess } from '../adapters/processes.ts'

const quick = process.argv.includes('--quick')
const TOKENS = quick ? 2048 : 16_384
const ROUNDS = quick ? 2 : 10
const A_ROUND = 20
const SESSIONS = 16
/** Tokens before the first that counts: the compilers of both processes take their time. */
const WARM = quick ? 20 : 150
const SHAPE = { layers: 4, queryHeads: 8, kvHeads: 2, headDim: 128, capacity: TOKENS + 1024, store: 'bf16' } as const

const random = (length: number) => Float32Array.from({ length }, () => Math.random() * 2 - 1)
const rows = (tokens: number) => ({ keys: random(2 * tokens * 128), values: random(2 * tokens * 128) })
const token = { ...rows(1), queries: random(8 * 128) }

type Step = (layer: number) => Promise<unknown>

/** Decodes tokens one by one. @returns ms of each step */
async function decode(step: Step, tokens: number): Promise<number[]> {
  const times: number[] = []
  for (let i = 0; i < tokens; i++)
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      const start = performance.now()
      await step(layer)
      times.push(performance.now() - start)
    }
  return times
}

const quantile = (times: readonly number[], q: number) => [...times].sort((a, b) => a - b)[Math.floor(times.length * q)]

/** Ms of each token: the sum of its steps. */
const perToken = (steps: readonly number[]) =>
  Array.from({ length: steps.length / SHAPE.layers }, (_, i) =>
    steps.slice(i * SHAPE.layers, (i + 1) * SHAPE.layers).reduce((sum, ms) => sum + ms, 0),
  )

function print(name: string, steps: readonly number[], rate: number): void {
  const tokens = perToken(steps)
  const cells = [
    rate.toFixed(0),
    ...[0.1, 0.5, 0.99].map((q) => quantile(tokens, q).toFixed(2)),
    ...[0.1, 0.5].map((q) => quantile(steps, q).toFixed(3)),
  ]
  console.log(name.padEnd(26) + cells.map((cell) => cell.padStart(13)).join(''))
}

const frame = buildFrame([
  { name: 'keys', shape: [2, 1, 128], data: token.keys },
  { name: 'values', shape: [2, 1, 128], data: token.values },
  { name: 'queries', shape: [8, 128], data: token.queries },
])

/** Steps by requests on one connection that is kept, with next to nothing done at this end. */
function overHttp(url: string, id: string): Step {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const headers = { authorization: 'Bearer secret', 'content-type': SAFETENSORS, 'content-length': frame.length }
  return (layer) =>
    new Promise<void>((resolve, reject) => {
      const call = request(`${url}/v1/sessions/${id}/layers/${layer}/step`, { method: 'POST', agent, headers })
      call.on('response', (answer) => {
        if (answer.statusCode !== 200) reject(new Error(`answered ${answer.statusCode}`))
        answer.resume().on('end', resolve)
      })
      call.on('error', reject)
      call.end(frame)
    })
}

/** Many sessions at once, each on a connection of its own. */
async function together(name: string, steps: readonly Step[]): Promise<void> {
  for (const step of steps) await decode(step, 1)
  const start = performance.now()
  const times = await Promise.all(steps.map((step) => decode(step, A_ROUND)))
  print(name, times.flat(), (steps.length * A_ROUND * 1000) / (performance.now() - start))
}

async function fill(session: Pick<RemoteSession, 'append'>): Promise<void> {
  for (let layer = 0; layer < SHAPE.layers; layer++) await session.append(layer, rows(TOKENS))
}

// Beside this file once both are compiled: a loader that names every closure would be measured as well.
const program = fileURLToPath(new URL('./bench-http-server.mjs', import.meta.url))
const server = startProcess(process.execPath, [program], { PARISKV_TOKENS: 'secret=me' })
const engine = await createEngine({ device: 'wasm' })
try {
  const url = await server.line(/^listens on (\S+)$/)
  const client = createClient({ url, token: 'secret' })
  const local = await engine.createSession(SHAPE)
  const remote = await client.createSession(SHAPE)
  await fill(local)
  await fill(remote)
  const direct: Step = async (layer) => {
    await local.append(layer, token)
    return local.attend(layer, token)
  }
  const viaClient: Step = (layer) => remote.step(layer, token)
  const viaHttp = overHttp(url, (await remote.fork()).id)
  const withSocket = typeof WebSocket === 'function'
  const second = withSocket ? await remote.fork() : undefined
  const socket = await second?.socket()
  const viaSocket: Step | undefined = socket && ((layer) => socket.step(layer, token))

  const kinds = new Map<string, Step>([
    ['direct', direct],
    ['HTTP', viaHttp],
    ['HTTP by the client', viaClient],
  ])
  if (viaSocket) kinds.set('WebSocket', viaSocket)
  const times = new Map<string, number[]>([...kinds.keys()].map((name) => [name, []]))
  for (const [, step] of kinds) await decode(step, WARM)
  // In turns, so that what else the machine does falls on all of them.
  for (let round = 0; round < ROUNDS; round++)
    for (const [name, step] of kinds) times.get(name)?.push(...(await decode(step, A_ROUND)))

  const heads = ['tokens/s', 'p10 ms', 'p50 ms', 'p99 ms', 'step p10', 'step p50']
  console.log(' '.repeat(26) + heads.map((head) => head.padStart(13)).join(''))
  for (const [name, steps] of times) {
    const total = steps.reduce((sum, ms) => sum + ms, 0)
    print(`${name}, 1 session`, steps, (steps.length / SHAPE.layers / total) * 1000)
  }
  const own = times.get('direct') ?? []
  const more = (steps: readonly number[], q: number) => (quantile(steps, q) - quantile(own, q)).toFixed(3)
  for (const [name, steps] of times)
    if (name !== 'direct')
      console.log(`${name} adds ${more(steps, 0.5)} ms to the median step, ${more(steps, 0.1)} to p10`)
  if (!withSocket) console.log('WebSocket: left out, this Node has none without --experimental-websocket')

  const sessions: RemoteSession[] = []
  for (let i = 0; i < SESSIONS; i++) sessions.push(await remote.fork())
  await together(
    `HTTP, ${SESSIONS} sessions`,
    sessions.map(({ id }) => overHttp(url, id)),
  )
  if (withSocket) {
    // What was appended past them they have to hear of.
    for (const session of sessions) await session.stats()
    const sockets = await Promise.all(sessions.map((session) => session.socket()))
    await together(
      `WebSocket, ${SESSIONS} sessions`,
      sockets.map((each) => (layer: number) => each.step(layer, token)),
    )
    for (const each of sockets) each.close()
  }
  socket?.close()
} finally {
  server.child.kill('SIGTERM')
  await server.exit
  await engine.dispose()
}
