import type { MiddlewareHandler } from 'hono'
import { matchedRoutes } from 'hono/route'
import type { Metrics } from './metrics.ts'
import type { AppOptions } from './options.ts'
import { toProblem } from './problem.ts'

/** What is told of every answer, as it is then. */
export interface Observers {
  metrics?: Pick<Metrics, 'observe'>
  readonly options: Pick<AppOptions, 'logger'>
}

/** Counts and logs every answer. Routes are told by their patterns, so that no id or token ends up there. */
export function observe(observers: Observers): MiddlewareHandler<{ Variables: { tenant: string } }> {
  return async (c, next) => {
    const start = performance.now()
    await next()
    const ms = performance.now() - start
    const patterns = matchedRoutes(c).map(({ path }) => path)
    const route = patterns.findLast((path) => !path.endsWith('*')) ?? 'none'
    const { method } = c.req
    const { status } = c.res
    observers.metrics?.observe(KNOWN.has(method) ? method : 'other', route, status, ms)
    const { logger } = observers.options
    if (!logger) return
    const code = c.error ? toProblem(c.error).code : undefined
    const error = status === 500 ? c.error : undefined
    try {
      logger({ method, route, status, ms, tenant: c.get('tenant'), code, error })
    } catch {
      // What was done is answered as done, whether it could be logged or not.
    }
  }
}

const KNOWN: ReadonlySet<string> = new Set(['GET', 'POST', 'PUT', 'DELETE', 'HEAD', 'OPTIONS', 'PATCH'])
