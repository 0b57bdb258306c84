import type { AppOptions, ParisApp } from '../sdk/http/app.ts'
import { DEFAULT_LIMITS } from '../sdk/http/limits.ts'
import { problemResponse, Refusal } from '../sdk/http/problem.ts'
import type { Engine } from '../sdk/index.ts'
import { ParisError } from '../sdk/index.ts'

/** What a server of any runtime takes: the app's own options and where to listen. */
export interface ServeOptions extends Omit<AppOptions, 'upgradeWebSocket' | 'engine'> {
  /** An engine, or how to open one. Default: the fastest backend that runs here. */
  readonly engine?: Engine | (() => Promise<Engine>)
  /** 0 takes any free port. Default 8787. */
  readonly port?: number
  /** Default 127.0.0.1; with auth 'off' only a loopback address is taken. */
  readonly host?: string
  /** Ms that requests under way may take to end at shutdown before they are cut off. Default 30,000. */
  readonly grace?: number
  /** Closes on SIGTERM and SIGINT; the second of them ends the process at once. Default false. */
  readonly signals?: boolean
}

/** A server that listens. */
export interface Server {
  /** Without a path or a final slash. */
  readonly url: string
  readonly app: ParisApp
  /** Ready turns 503, requests under way end, then everything is freed. May be called again. */
  close(): Promise<void>
  /** Settles when it has been closed, whoever asked for it. */
  readonly closed: Promise<void>
}

export const PORT = 8787
export const HOST = '127.0.0.1'
export const GRACE = 30_000

/** Bytes of one WebSocket message that is read at all: the app refuses those beyond its limit by an answer. */
export function largestMessage({ limits }: Pick<AppOptions, 'limits'>): number {
  return (limits?.body ?? DEFAULT_LIMITS.body) + 64 * 1024
}

/** @throws ParisError `bad_config` where the app would stand open beyond this machine */
export function checkHost(host: string, auth: AppOptions['auth']): void {
  if (auth !== 'off' || LOOPBACK.test(host)) return
  const fix = 'Give tokens, or listen on 127.0.0.1.'
  throw new ParisError('bad_config', {
    where: 'serve(host)',
    got: host,
    want: "a loopback address with auth 'off'",
    fix,
  })
}

const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|::1|\[::1\])$/i

/** A handler of requests, and what its runtime hands it beside them. */
type Handler<Rest extends unknown[]> = (request: Request, ...rest: Rest) => Response | Promise<Response>

/**
 * A handler that with auth 'off' answers this machine alone: to a web page that found it, under its own name or by a
 * name that leads here, it says 401 `unauthorized`.
 */
export function guarded<Rest extends unknown[]>(auth: AppOptions['auth'], handle: Handler<Rest>): Handler<Rest> {
  if (auth !== 'off') return handle
  return (request, ...rest) => {
    const host = request.headers.get('host') ?? ''
    const origin = request.headers.get('origin')
    if (!LOOPBACK.test(host.replace(/:\d+$/, ''))) return problemResponse(foreign('Host', 'a loopback address'))
    if (origin !== null && hostOf(origin) !== host.toLowerCase())
      return problemResponse(foreign('Origin', 'none, or that of this server'))
    return handle(request, ...rest)
  }
}

function hostOf(origin: string): string | undefined {
  return URL.canParse(origin) ? new URL(origin).host : undefined
}

function foreign(where: string, want: string): Refusal {
  const parts = { got: 'another', want, fix: 'Give the server tokens to be asked by other names or by other pages.' }
  return new Refusal('unauthorized', { where, ...parts })
}

/** The URL of an address as a client takes it. */
export function urlOf(host: string, port: number): string {
  return `http://${host.includes(':') && !host.startsWith('[') ? `[${host}]` : host}:${port}`
}

/** What shuts a server down, once. @param shutDown stops listening and frees everything */
export function closing(shutDown: () => Promise<void>): Pick<Server, 'close' | 'closed'> {
  let settle: () => void
  const closed = new Promise<void>((resolve) => {
    settle = resolve
  })
  let begun: Promise<void> | undefined
  const close = () => {
    begun ??= shutDown().finally(() => settle())
    return begun
  }
  return { close, closed }
}

/** Waits for a promise at most so many ms. @returns whether it settled within them */
export async function within(ms: number, work: Promise<unknown>): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(resolve, ms, false)
  })
  return Promise.race([work.then(() => true), late]).finally(() => clearTimeout(timer))
}
