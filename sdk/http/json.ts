import { badBody } from './problem.ts'

/** A JSON object, each name once. @param fix the next thing to try @throws ParisError `bad_body` */
export function parseJson(bytes: Uint8Array, fix: string): Record<string, unknown> {
  let value: unknown
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes)
    let names = 0
    value = JSON.parse(text, function (this: unknown, name, inner: unknown) {
      if (name === '__proto__') throw new Error('__proto__')
      if (!Array.isArray(this)) names++
      return inner
    })
    // Of a name that is given twice one is dropped; the root counts as a name as well.
    if (namesIn(text) + 1 !== names) throw new Error('a name twice')
  } catch (cause) {
    throw badBody('no JSON that can be read', 'a JSON object', fix, cause)
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  throw badBody('JSON that is no object', 'a JSON object', fix)
}

/** How many names a text gives that is JSON, each as often as it stands there. */
function namesIn(text: string): number {
  let names = 0
  for (let i = 0; i < text.length; i++) {
    if (text[i] !== '"') continue
    for (i++; text[i] !== '"'; i++) if (text[i] === '\\') i++
    let next = i + 1
    while (' \t\n\r'.includes(text[next])) next++
    if (text[next] === ':') names++
  }
  return names
}
