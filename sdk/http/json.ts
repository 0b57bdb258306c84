import { badBody } from './problem.ts'

/** A JSON object. @param fix the next thing to try @throws ParisError `bad_body` */
export function parseJson(bytes: Uint8Array, fix: string): Record<string, unknown> {
  let value: unknown
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes), (name, inner: unknown) => {
      if (name === '__proto__') throw new Error('__proto__')
      return inner
    })
  } catch (cause) {
    throw badBody('no JSON that can be read', 'a JSON object', fix, cause)
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  throw badBody('JSON that is no object', 'a JSON object', fix)
}
