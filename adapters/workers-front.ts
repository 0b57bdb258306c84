import { createApp, type Journal, type ParisApp } from '../sdk/http/app.ts'
import { Auth } from '../sdk/http/auth.ts'
import { notFound, Refusal } from '../sdk/http/problem.ts'
import { ParisError } from '../sdk/index.ts'
import { parseTokens, splitTokens } from './tokens.ts'
import { createEngine } from './workers.ts'
import { objectLimits, type WorkerEnv } from './workers-object.ts'

/** What answers for everything that is no session: probes, documents, refusals. It cannot open a session. */
export interface Front {
  readonly app: ParisApp
  readonly auth: Auth
}

const fronts = new WeakMap<WorkerEnv, Front>()

/** The front of these bindings. @throws ParisError `internal` where their tokens are none */
export function frontOf(env: WorkerEnv): Front {
  const known = fronts.get(env)
  if (known) return known
  const options = { auth: { tokens: tokensOf(env) }, metricsToken: env.PARISKV_METRICS_TOKEN }
  const front = {
    app: createApp({
      ...options,
      limits: objectLimits(env),
      engine: () => createEngine(),
      journal: NO_STORE,
      sweepEvery: 0,
    }),
    auth: new Auth(options),
  }
  fronts.set(env, front)
  return front
}

/** A store that takes nothing: a session that was opened here would be in nobody's storage. */
const NO_STORE: Journal = { created: refuse, appended: refuse, truncated: refuse, removed: async () => {} }

async function refuse(): Promise<never> {
  throw notFound()
}

function tokensOf(env: WorkerEnv): Map<string, string> {
  try {
    return parseTokens(splitTokens(env.PARISKV_TOKENS))
  } catch (cause) {
    if (!(cause instanceof ParisError)) throw cause
    const { where, got, want, fix } = cause
    throw new Refusal('internal', { where: `PARISKV_TOKENS: ${where}`, got, want, fix, cause })
  }
}
