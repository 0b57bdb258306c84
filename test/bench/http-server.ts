/** The server that http.ts asks: on Node and WebAssembly, with the tokens of $PARISKV_TOKENS. Prints its address. */
import { createEngine } from '../../adapters/node.ts'
import { serve } from '../../adapters/serve-node.ts'
import { parseTokens, splitTokens } from '../../adapters/tokens.ts'

const server = await serve({
  port: 0,
  auth: { tokens: parseTokens(splitTokens(process.env.PARISKV_TOKENS)) },
  engine: () => createEngine({ device: 'wasm' }),
  signals: true,
})
await server.app.ready()
console.log(`listens on ${server.url}`)
await server.closed
