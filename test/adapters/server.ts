/** Serves the app on the runtime that runs this file, with the tokens of $PARISKV_TOKENS or without, and prints its address. */
import type { ServeOptions, Server } from '../../adapters/serving.ts'
import { parseTokens, splitTokens } from '../../adapters/tokens.ts'

type Serve = (options: ServeOptions) => Promise<Server>

const runtime = 'Bun' in globalThis ? 'bun' : 'Deno' in globalThis ? 'deno' : 'node'
const { serve } = (await import(`../../adapters/serve-${runtime}.ts`)) as { serve: Serve }
const { createEngine } = (await import(`../../adapters/${runtime}.ts`)) as typeof import('../../adapters/node.ts')

const given = splitTokens(process.env.PARISKV_TOKENS)
const server = await serve({
  port: 0,
  auth: given.length > 0 ? { tokens: parseTokens(given) } : 'off',
  engine: () => createEngine({ device: 'wasm' }),
  signals: true,
})
await server.app.ready()
console.log(`${runtime} listens on ${server.url}`)
await server.closed
console.log('closed')
