import { fromBase64url } from './ids.ts'
import type { AppOptions } from './options.ts'
import { notFound, Refusal } from './problem.ts'

/** Before a token among the subprotocols of a socket: what a browser can send beside `pariskv`. */
export const TOKEN_PROTOCOL = 'pariskv.token.'

/** Compares tokens in a time that depends on the length of what was given, and not on what either says. */
export class Auth {
  private readonly encoder = new TextEncoder()
  /** Bytes of the tokens that are known. */
  private readonly known = new Map<string, Uint8Array>()

  constructor(private readonly options: Pick<AppOptions, 'auth' | 'metricsToken'>) {}

  /** Whose request this is. @throws ParisError `unauthorized` */
  tenantOf(request: Request): string {
    return this.lookUp(request)()
  }

  /**
   * Whose request this is, looked up anew at each call: tokens may be taken away while its connection is open.
   * @returns throws ParisError `unauthorized`
   */
  lookUp(request: Request): () => string {
    const { auth } = this.options
    if (auth === 'off') return () => ''
    const given = this.encoder.encode(tokenOf(request))
    return () => {
      let tenant: string | undefined
      for (const [token, owner] of auth.tokens) if (this.equals(token, given)) tenant = owner
      if (tenant !== undefined) return tenant
      throw unauthorized()
    }
  }

  /** @throws ParisError `unauthorized`, or `not_found` where there are no metrics for anybody */
  checkMetrics(request: Request): void {
    const { auth, metricsToken } = this.options
    if (metricsToken === undefined) {
      if (auth === 'off') return
      throw notFound()
    }
    if (!this.equals(metricsToken, this.encoder.encode(tokenOf(request)))) throw unauthorized()
  }

  private equals(token: string, given: Uint8Array): boolean {
    if (token === '') return false
    let bytes = this.known.get(token)
    if (!bytes) {
      bytes = this.encoder.encode(token)
      this.known.set(token, bytes)
    }
    let differs = given.length ^ bytes.length
    for (let i = 0; i < given.length; i++) differs |= given[i] ^ bytes[i % bytes.length]
    return differs === 0
  }
}

/** The token that a request carries, or ''. */
export function tokenOf(request: Request): string {
  const bearer = /^Bearer +([^\s]+)$/i.exec(request.headers.get('authorization') ?? '')?.[1]
  if (bearer !== undefined) return bearer
  const protocols = (request.headers.get('sec-websocket-protocol') ?? '').split(',').map((text) => text.trim())
  const offered = protocols.find((text) => text.startsWith(TOKEN_PROTOCOL))
  return (offered && fromBase64url(offered.slice(TOKEN_PROTOCOL.length))) ?? ''
}

function unauthorized(): Refusal {
  return new Refusal('unauthorized', {
    where: 'Authorization',
    got: 'no token that is known',
    want: 'Bearer and a token',
    fix: 'Send the token of this server; only the health probes go without.',
  })
}
