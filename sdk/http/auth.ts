import { sha256 } from '@noble/hashes/sha2.js'
import { fromBase64url } from './ids.ts'
import type { AppOptions } from './options.ts'
import { notFound, Refusal } from './problem.ts'

/** Before a token among the subprotocols of a socket: what a browser can send beside `pariskv`. */
export const TOKEN_PROTOCOL = 'pariskv.token.'

/** Compares tokens by their digests, in a time that does not depend on what they say. */
export class Auth {
  private readonly digests = new Map<string, Uint8Array>()

  constructor(private readonly options: Pick<AppOptions, 'auth' | 'metricsToken'>) {}

  /** Whose request this is. @throws ParisError `unauthorized` */
  tenantOf(request: Request): string {
    const { auth } = this.options
    if (auth === 'off') return ''
    const given = sha256(new TextEncoder().encode(tokenOf(request)))
    let tenant: string | undefined
    for (const [token, owner] of auth.tokens) if (this.equals(token, given)) tenant = owner
    if (tenant !== undefined) return tenant
    throw unauthorized()
  }

  /** @throws ParisError `unauthorized`, or `not_found` where there are no metrics for anybody */
  checkMetrics(request: Request): void {
    const { auth, metricsToken } = this.options
    if (metricsToken === undefined) {
      if (auth === 'off') return
      throw notFound()
    }
    if (!this.equals(metricsToken, sha256(new TextEncoder().encode(tokenOf(request))))) throw unauthorized()
  }

  private equals(token: string, given: Uint8Array): boolean {
    let digest = this.digests.get(token)
    if (!digest) {
      digest = sha256(new TextEncoder().encode(token))
      this.digests.set(token, digest)
    }
    let differs = token === '' ? 1 : 0
    for (let i = 0; i < digest.length; i++) differs |= digest[i] ^ given[i]
    return differs === 0
  }
}

function tokenOf(request: Request): string {
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
