/**
 * A function on a GPU host of your own: PARISKV_TOKENS=secret=me PORT=8787 node server.ts
 * GET /ping answers 204 while it warms up and 200 when it serves; SIGTERM lets requests end, then exits with 0.
 */
import { createEngine } from 'pariskv'
import { parseTokens, serve, splitTokens } from 'pariskv/node'

const { PARISKV_TOKENS, PARISKV_METRICS_TOKEN, HOST = '0.0.0.0', PORT = '8787' } = process.env
if (!PARISKV_TOKENS) throw new Error('PARISKV_TOKENS is not set: token=tenant,token=tenant')
const tokens = parseTokens(splitTokens(PARISKV_TOKENS))

const server = await serve({
  port: Number(PORT),
  host: HOST,
  auth: { tokens },
  metricsToken: PARISKV_METRICS_TOKEN,
  engine: async () => {
    const engine = await createEngine({ device: 'auto' })
    console.log(`on ${engine.info.backend}: ${engine.info.description}`)
    return engine
  },
  // Pipelines of these shapes are compiled before /ping answers 200.
  warm: [{ layers: 32, queryHeads: 32, kvHeads: 8, headDim: 128, capacity: 131_072, store: 'bf16' }],
  limits: { bytes: 64 * 2 ** 30, sessionsPerTenant: 64 },
  logger: (entry) => console.log(JSON.stringify(entry)),
  signals: true,
})
console.log(`listening on ${server.url}`)
await server.closed
