import { configOptions } from '../config.ts'
import type { Service } from './service.ts'
import type { Entry } from './sessions.ts'

/** What `GET /v1/sessions/:id` tells. Recall before the first audit is null. */
export function sessionView(service: Service, { id, ttl, session, engine }: Entry): Record<string, unknown> {
  const { store, layers, calls, recall, offload } = session.stats()
  return {
    id,
    epoch: service.host.epoch,
    ttl,
    backend: engine.info.backend,
    store,
    config: configOptions(session.config),
    lengths: layers.map(({ length }) => length),
    layers,
    calls,
    recall,
    offload: offload && { hits: offload.hits, misses: offload.misses },
    memory: session.memory(),
  }
}

/** What `GET /v1/info` tells. */
export function infoView({ host, limits }: Service): Record<string, unknown> {
  const info = host.current?.info
  return {
    state: host.state,
    epoch: host.epoch,
    backend: info?.backend ?? null,
    description: info?.description ?? null,
    passedOver: info?.passedOver ?? [],
    limits,
  }
}

/** Milliseconds of the clock as ISO 8601; the end of time where they go beyond it. */
export function isoTime(ms: number): string {
  return new Date(Math.min(ms, 8.64e15)).toISOString()
}
