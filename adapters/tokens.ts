import { ParisError } from '../sdk/index.ts'

/**
 * Bearer tokens by tenant.
 * @param given `token` or `token=tenant` each; a token without a tenant is of the tenant `default`
 * @throws ParisError `bad_config` for an empty, spaced or repeated one; the message names no token
 */
export function parseTokens(given: readonly string[]): Map<string, string> {
  const tokens = new Map<string, string>()
  given.forEach((text, i) => {
    const at = text.lastIndexOf('=')
    const [token, tenant] = at < 0 ? [text, 'default'] : [text.slice(0, at), text.slice(at + 1)]
    if (!/^[\x21-\x7e]+$/.test(token) || tenant === '') throw badToken(i, 'an empty part or a space')
    if (tokens.has(token)) throw badToken(i, 'a token that stands there already')
    tokens.set(token, tenant)
  })
  return tokens
}

/** Tokens of one comma-separated text, as an environment variable holds them. */
export function splitTokens(text: string | undefined): string[] {
  return (text ?? '').split(',').flatMap((part) => part.trim() || [])
}

function badToken(index: number, got: string): ParisError {
  const fix = 'Write token or token=tenant, and commas between them.'
  return new ParisError('bad_config', { where: `token ${index + 1}`, got, want: 'token[=tenant], each once', fix })
}
