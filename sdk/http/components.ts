import { z } from '@hono/zod-openapi'
import { configSchema } from '../config.ts'
import { STATUS } from './problem.ts'

const count = z.number().int().min(0)
const zones = z.object({ sink: count, retrieval: count, local: count, buffer: count })
/** The configuration with every default filled in. */
const config = configSchema.extend({})

export const SessionRequest = configSchema.extend({ ttl: z.number().int().min(1).optional() })

export const Opened = z
  .object({
    id: z.string(),
    epoch: z.string(),
    ttl: z.number(),
    expires: z.string(),
    backend: z.string(),
    bytes: count,
    limits: z.record(z.string(), z.number()),
    lengths: z.array(count),
    config,
  })
  .openapi('Opened')

export const SessionBody = z
  .object({
    id: z.string(),
    epoch: z.string(),
    ttl: z.number(),
    backend: z.string(),
    store: z.string().optional(),
    config,
    lengths: z.array(count),
    layers: z.array(z.object({ length: count, zones })),
    calls: z.record(z.string(), count),
    recall: z.object({ mean: z.number().nullable(), last: z.number().nullable(), audits: count }),
    offload: z.object({ hits: count, misses: count }).optional(),
    memory: z.object({
      rows: count,
      summary: count,
      scratch: count,
      hot: count.optional(),
      pages: count.optional(),
      total: count,
    }),
  })
  .openapi('Session')

export const Appended = z.object({ offset: count, tokens: count, length: count }).openapi('Appended')

export const Truncated = z.object({ lengths: z.array(count) }).openapi('Truncated')

export const Info = z
  .object({
    state: z.string(),
    epoch: z.string(),
    backend: z.string().nullable(),
    description: z.string().nullable(),
    passedOver: z.array(z.object({ name: z.string(), reason: z.string() })),
    limits: z.record(z.string(), z.number()),
  })
  .openapi('Info')

export const ProblemBody = z
  .object({
    type: z.string(),
    title: z.string(),
    status: z.number(),
    code: z.enum(Object.keys(STATUS)),
    where: z.string(),
    got: z.string(),
    want: z.string(),
    fix: z.string(),
    retryAfter: z.number().optional(),
    length: count.optional(),
  })
  .openapi('Problem')
