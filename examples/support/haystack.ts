import { readFileSync } from 'node:fs'

/** Words by kind, as the model knows them. */
interface Words {
  readonly adjectives: readonly string[]
  readonly nouns: readonly string[]
  readonly verbs: readonly string[]
  readonly prepositions: readonly string[]
}

/** A magic number hidden in a text. */
export interface Needle {
  /** ADJ NOUN. */
  readonly name: string
  /** D D D D. */
  readonly digits: string
  /** Where it stands, as a share of the text. */
  readonly depth: number
}

/** Filler with needles between its sentences; see the model's README. Words are tokens. */
export interface Haystack {
  readonly text: string
  readonly needles: readonly Needle[]
}

/**
 * A text of at most `tokens` words with needles at random places, all names distinct.
 * @param seed the same seed gives the same text
 */
export function makeHaystack(folder: URL, tokens: number, count: number, seed: number): Haystack {
  const words = JSON.parse(readFileSync(new URL('words.json', folder), 'utf8')) as Words
  const random = generator(seed)
  const pick = (list: readonly string[]) => list[Math.floor(random() * list.length)]
  const [adj, noun] = [() => pick(words.adjectives), () => pick(words.nouns)]
  const [verb, prep] = [() => pick(words.verbs), () => pick(words.prepositions)]
  const shapes = [
    () => `the ${adj()} ${noun()} ${verb()} the ${adj()} ${noun()} .`,
    () => `the ${adj()} ${noun()} ${verb()} a ${adj()} ${noun()} ${prep()} the ${adj()} ${noun()} .`,
    () => `the ${adj()} ${noun()} is ${prep()} the ${noun()} .`,
    () => `a ${adj()} ${noun()} and the ${adj()} ${noun()} ${verb()} the ${noun()} ${prep()} the ${noun()} .`,
  ]
  const names = new Set<string>()
  while (names.size < count) names.add(`${adj()} ${noun()}`)
  const needles = [...names].map((name) => {
    const digits = Array.from({ length: 4 }, () => Math.floor(random() * 10)).join(' ')
    return { name, digits, sentence: `the magic number of ${name} is ${digits} .` }
  })
  const sizeOf = (sentence: string) => sentence.split(' ').length
  let room = tokens - needles.reduce((sum, { sentence }) => sum + sizeOf(sentence), 0)
  const sentences: string[] = []
  for (let filler = shapes[0](); sizeOf(filler) <= room; filler = shapes[Math.floor(random() * 4)]()) {
    sentences.push(filler)
    room -= sizeOf(filler)
  }
  for (const { sentence } of needles) sentences.splice(Math.floor(random() * (sentences.length + 1)), 0, sentence)
  const text = sentences.join(' ')
  const placed = needles.map(({ name, digits, sentence }) => ({
    name,
    digits,
    depth: text.indexOf(sentence) / text.length,
  }))
  return { text, needles: placed.sort((a, b) => a.depth - b.depth) }
}

/** Uniform in [0, 1): an xorshift of 32 bits. */
function generator(seed: number): () => number {
  let state = seed >>> 0 || 1
  return () => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return (state >>> 0) / 2 ** 32
  }
}
