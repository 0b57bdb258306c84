import type { Context } from 'hono'
import type { UpgradeWebSocket, WSContext } from 'hono/ws'
import { asTexts } from './answer.ts'
import { tooLarge } from './body.ts'
import { withDeadline } from './call.ts'
import { type HttpEnv, runOp } from './calls.ts'
import { OPS, type OpName, type Scalars } from './ops.ts'
import { badBody, badParameter, Refusal, tooMany, toProblem } from './problem.ts'
import type { Service } from './service.ts'
import type { Entry } from './sessions.ts'
import { buildFrame, type Frame, parseFrame } from './tensors.ts'

const SCALARS = ['layer', 'offset', 'k', 'length', 'from', 'to'] as const

/**
 * `GET /v1/sessions/:id/socket`: one frame a call, one a result, in order.
 * @param whose looked up at each message: a socket has no more rights than its token
 * @throws ParisError `not_supported`
 */
export async function openSocket(c: Context<HttpEnv>, id: string, whose: () => string): Promise<Response> {
  const { service, tenant } = c.var
  const entry = service.sessions.get(id, tenant)
  const upgrade = service.options.upgradeWebSocket as UpgradeWebSocket | undefined
  if (!upgrade || c.req.header('upgrade')?.toLowerCase() !== 'websocket')
    throw new Refusal('not_supported', {
      where: 'this route',
      got: upgrade ? 'a request that asks for no WebSocket' : 'a host without WebSockets',
      want: 'a WebSocket',
      fix: 'Use POST …/step, which does the same.',
    })
  const events = socketEvents(service, entry, whose)
  // As middleware, which every runtime's upgrade is: it answers, or passes on what is no upgrade.
  const response = await upgrade(() => events)(c, async () => {})
  return response ?? c.body(null, 400)
}

/** The life of one socket. */
export function socketEvents(service: Service, entry: Entry, whose: () => string) {
  let turn: Promise<void> = Promise.resolve()
  let arriving: Promise<unknown> = Promise.resolve()
  let waiting = 0
  const left = new AbortController()
  const { queuePerSession } = service.limits
  let drain = () => {}
  return {
    onOpen(_: unknown, ws: WSContext) {
      drain = () => void turn.then(() => ws.close(1001, 'the server is being stopped')).catch(() => {})
      service.onDrain.add(drain)
    },
    onMessage({ data }: { data: unknown }, ws: WSContext) {
      // A second queue's length of refusals may be owed as well; who sends on and does not read is cut off.
      if (waiting >= 2 * queuePerSession) return ws.close(1008, 'too many calls without an answer')
      const full = waiting >= queuePerSession
      waiting++
      // Bytes of a Blob come when they like; the calls begin in the order of their messages all the same.
      const arrived = arriving.then(() => (data instanceof Blob ? data.arrayBuffer() : data))
      arriving = arrived.catch(() => {})
      const result = full
        ? Promise.resolve(refusalFrame(tooManyCalls(queuePerSession)))
        : answer({ service, entry, whose }, arrived, left.signal)
      turn = turn
        .then(async () => send(ws, await result))
        // What can't be sent has nobody to read it.
        .catch(() => left.abort())
        .finally(() => {
          waiting--
        })
    },
    onClose() {
      service.onDrain.delete(drain)
      left.abort()
    },
    onError() {
      service.onDrain.delete(drain)
      left.abort()
    },
  }
}

function send(ws: WSContext, frame: Uint8Array<ArrayBuffer>): void {
  if (ws.readyState === 1) ws.send(frame)
}

/** One message, done and answered as a frame; it never rejects. */
async function answer(
  { service, entry, whose }: { service: Service; entry: Entry; whose: () => string },
  arrived: Promise<unknown>,
  client: AbortSignal,
) {
  const start = performance.now()
  const { admission, limits, sessions } = service
  let id: string | undefined
  let op = 'unknown'
  let status = 200
  try {
    service.checkOpen()
    const { said, tensors } = await admission.request(async () => {
      sessions.get(entry.id, whose())
      const bytes = bytesOf(await arrived, limits.body)
      const held = admission.hold()
      try {
        held.add(bytes.length)
        const frame = parseFrame(bytes)
        id = frame.metadata.get('id')?.slice(0, 128)
        const call = callOf(frame)
        op = call.op
        return await sessions.use(entry, () =>
          withDeadline(limits.deadline, client, (signal) =>
            runOp(service, entry, call.op, { scalars: call.scalars, frame, signal }),
          ),
        )
      } finally {
        held.release()
      }
    })
    return buildFrame(tensors ?? [], { ...asTexts(said), status: '200', ...(id !== undefined && { id }) })
  } catch (error) {
    status = toProblem(error).status
    return refusalFrame(error, id)
  } finally {
    service.metrics.observe('WS', op, status, performance.now() - start)
  }
}

function refusalFrame(error: unknown, id?: string): Uint8Array<ArrayBuffer> {
  return buildFrame([], { ...asTexts({ ...toProblem(error) }), ...(id !== undefined && { id }) })
}

function bytesOf(data: unknown, limit: number): Uint8Array<ArrayBuffer> {
  if (data instanceof ArrayBuffer) return checked(new Uint8Array(data), limit)
  if (ArrayBuffer.isView(data))
    return checked(new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength), limit)
  throw badBody('a text message', 'a binary one', 'Send the bytes of a frame.')
}

function checked(bytes: Uint8Array<ArrayBuffer>, limit: number): Uint8Array<ArrayBuffer> {
  if (bytes.length > limit) throw tooLarge(`${bytes.length} bytes`, limit)
  return bytes
}

/** What a frame asks for. @throws ParisError `bad_parameter` */
function callOf({ metadata }: Frame): { op: OpName; scalars: Scalars } {
  const op = metadata.get('op') ?? ''
  if (!Object.hasOwn(OPS, op)) throw badParameter('op', op, Object.keys(OPS).join(', '))
  const scalars: Partial<Record<(typeof SCALARS)[number], number>> = {}
  for (const name of SCALARS) {
    const text = metadata.get(name)
    if (text === undefined) continue
    if (!/^\d{1,15}$/.test(text)) throw badParameter(name, text, 'a whole number of at least 0')
    scalars[name] = Number(text)
  }
  return { op: op as OpName, scalars }
}

function tooManyCalls(limit: number): Refusal {
  return tooMany('the socket', 'more calls without an answer', `at most ${limit}`)
}
