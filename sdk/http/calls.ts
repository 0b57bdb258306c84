import type { Context } from 'hono'
import { type Answer, answerResponse } from './answer.ts'
import { withBody } from './body.ts'
import { withDeadline } from './call.ts'
import { OPS, type OpName, type Scalars } from './ops.ts'
import { printOf } from './print.ts'
import { badBody } from './problem.ts'
import type { Service } from './service.ts'
import type { Entry } from './sessions.ts'
import { type Frame, parseFrame } from './tensors.ts'

/** What a request carries through the routes. */
export interface HttpEnv {
  Variables: { tenant: string; service: Service }
}

const NOTHING: Frame = { tensors: new Map(), metadata: new Map() }

/** Runs one op on a session, in its turn. */
export function runOp(
  service: Service,
  entry: Entry,
  name: OpName,
  parts: { scalars: Scalars; frame: Frame; signal: AbortSignal },
): Promise<Answer> {
  return service.sessions.inOrder(entry, parts.signal, () =>
    service.onEngine(entry.engine, () => OPS[name]({ service, entry, ...parts })),
  )
}

/** A request on a session: found, admitted, read, done, answered. */
export async function answerOp(
  c: Context<HttpEnv>,
  name: OpName,
  id: string,
  scalars: Scalars,
  key: string | undefined,
): Promise<Response> {
  const { tenant, service } = c.var
  const entry = service.sessions.get(id, tenant)
  const { sessions, admission, limits, options } = service
  const request = c.req.raw
  const source = options.readBody?.(c.env)
  const answer = await admission.request(() =>
    sessions.use(entry, () =>
      withDeadline(limits.deadline, request.signal, (signal) => {
        const answered = async (bytes: Uint8Array<ArrayBuffer>) => {
          const run = async () => {
            const frame = name === 'truncate' ? noBody(bytes) : parseFrame(bytes)
            return runOp(service, entry, name, { scalars, frame, signal })
          }
          return entry.replays.once(key, key === undefined ? '' : printOf(request, bytes), run, { signal })
        }
        return withBody(request, limits.body, admission, signal, answered, source)
      }),
    ),
  )
  return answerResponse(answer)
}

function noBody(bytes: Uint8Array): Frame {
  if (bytes.length === 0) return NOTHING
  throw badBody(`${bytes.length} bytes`, 'no body', 'Put the length into the query.')
}
