import { readFileSync } from 'node:fs'
import { makeHaystack } from '../../examples/support/haystack.ts'
import type { Model } from '../../sdk/llm/index.ts'
import { random } from '../support/inputs.ts'

/** A task of the model: what it is given, and what it should say. */
export interface Task {
  readonly prompt: readonly number[]
  readonly answer: readonly number[]
}

/** Makes the two tasks that the model was trained for; see its README. */
export class Tasks {
  private readonly next: () => number
  private readonly words: readonly string[]

  constructor(
    private readonly model: Model,
    private readonly folder: URL,
    seed: number,
  ) {
    this.next = random(seed)
    const { adjectives, nouns } = JSON.parse(readFileSync(new URL('words.json', folder), 'utf8')) as {
      adjectives: string[]
      nouns: string[]
    }
    this.words = [...new Set([...adjectives, ...nouns]), ...'0123456789']
  }

  /** `count` random words and the same again. */
  copy(count: number): Task {
    const list = Array.from({ length: count }, () => this.words[Math.floor(this.next() * this.words.length)]).join(' ')
    return { prompt: this.encode(`copy : ${list} =`), answer: this.encode(`${list} .`) }
  }

  /** A copy of 64 to 320 words. */
  anyCopy(): Task {
    return this.copy(64 + Math.floor(this.next() * 257))
  }

  /** A text that begins a context, with a needle every 128 tokens, and a question about each. */
  text(tokens: number): { readonly opening: number[]; readonly questions: Task[] } {
    const seed = 1 + Math.floor(this.next() * 2 ** 31)
    const { text, needles } = makeHaystack(this.folder, tokens - 1, Math.floor(tokens / 128), seed)
    const questions = needles.map(({ name, digits }) => ({
      prompt: this.encode(`recall the magic number of ${name} is`),
      answer: this.encode(`${digits} .`),
    }))
    return { opening: this.model.tokenizer!.encode(text), questions }
  }

  private encode(text: string): number[] {
    return this.model.tokenizer!.encode(text, { special: false })
  }
}
