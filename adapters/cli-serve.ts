import { parseArgs } from 'node:util'
import { createOpenAi } from '../sdk/http/openai.ts'
import { OPENAI_LIMITS } from '../sdk/http/openai-options.ts'
import type { Device, EngineInfo } from '../sdk/index.ts'
import { parseBytes, parseCount } from './cli-values.ts'
import { createEngine } from './node.ts'
import { modelsOf } from './serve-models.ts'
import { serve } from './serve-node.ts'
import { HOST, PORT } from './serving.ts'
import { parseTokens, splitTokens } from './tokens.ts'

const HELP = `Usage: pariskv serve [options]

Serves KV-cache sessions over HTTP until SIGTERM or SIGINT; its routes are described under /docs.

  --port <n>                  default ${PORT}; 0 takes any free port
  --host <address>            default ${HOST}
  --model <dir>               a Hugging Face folder to serve as OpenAI's clients ask for it, by its own name, at
                              /v1/chat/completions and /v1/completions; may be given again
  --device <name>             auto (default), webgpu, wasm or reference
  --token <token[=tenant]>    who may call; may be given again. Without it only this machine may, and nobody is asked
  --metrics-token <token>     opens GET /metrics to whoever has it
  --max-bytes <n[KiB|MiB|GiB]>  memory of all sessions together
  --max-sessions <n>          sessions in all
  --ttl <seconds>             life of a session that nobody uses, unless it asks for another
  --help

PARISKV_TOKENS=token[=tenant],… and PARISKV_METRICS_TOKEN do the same without showing in a process list.`

const OPTIONS = {
  port: { type: 'string' },
  host: { type: 'string' },
  model: { type: 'string', multiple: true },
  device: { type: 'string' },
  token: { type: 'string', multiple: true },
  'metrics-token': { type: 'string' },
  'max-bytes': { type: 'string' },
  'max-sessions': { type: 'string' },
  ttl: { type: 'string' },
  help: { type: 'boolean' },
} as const

/** `pariskv serve`. @returns the exit status, once a signal has ended it */
export async function serveCommand(argv: string[]): Promise<number> {
  const { values } = parseArgs({ args: argv, options: OPTIONS })
  if (values.help) {
    console.log(HELP)
    return 0
  }
  const { host = HOST, device = 'auto', token = [], model = [], ttl } = values
  const tokens = parseTokens([...token, ...splitTokens(process.env.PARISKV_TOKENS)])
  const bytes = values['max-bytes'] === undefined ? undefined : parseBytes('serve --max-bytes', values['max-bytes'])
  const sessions =
    values['max-sessions'] === undefined ? undefined : parseCount('serve --max-sessions', values['max-sessions'])
  const auth = tokens.size > 0 ? { tokens } : ('off' as const)
  const models = modelsOf(model, device as Device)
  const openai = model.length > 0 ? createOpenAi({ models, auth, limits: { bytes } }) : undefined
  const server = await serve({
    host,
    port: values.port === undefined ? PORT : parseCount('serve --port', values.port, 0, 65_535),
    auth,
    openai,
    // An answer that is not streamed may take minutes without a byte.
    timeouts: openai && { idle: OPENAI_LIMITS.deadline },
    metricsToken: values['metrics-token'] ?? process.env.PARISKV_METRICS_TOKEN,
    limits: {
      bytes,
      bytesPerTenant: bytes,
      sessions,
      ttl: ttl === undefined ? undefined : parseCount('serve --ttl', ttl),
    },
    signals: true,
    engine: async () => {
      // Ready means that the models are there too.
      await openai?.ready()
      const engine = await createEngine({ device: device as Device })
      console.log(describeBackend(engine.info))
      return engine
    },
  })
  console.log(`listening on ${server.url}, its routes under ${server.url}/docs`)
  if (openai) console.log(`models ${Object.keys(models).join(', ')} under ${server.url}/v1`)
  console.log(tokens.size > 0 ? `${tokens.size} tokens` : 'no tokens: this machine alone may call')
  try {
    await server.app.ready()
    console.log('ready')
  } catch (error) {
    await server.close()
    throw error
  }
  await server.closed
  console.log('closed')
  return 0
}

/** Which backend won, and why the others did not. */
function describeBackend({ backend, description, passedOver }: EngineInfo): string {
  const others = passedOver.map(({ name, reason }) => `  not ${name}: ${reason}`)
  return [`backend ${backend}: ${description}`, ...others].join('\n')
}
