import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { BEST, EXACT } from './quality-selectors.ts'
import type { Score } from './quality-text.ts'

/** Answers about one text. */
export interface TextResult {
  readonly tokens: number
  readonly seed: number
  readonly scores: readonly Score[]
}

/** One selector at one length and K, summed over texts. */
export interface Cell extends Score {
  readonly tokens: number
  readonly texts: number
}

/** The texts of a results file; none where there is no such file. */
export function readTexts(file: string): TextResult[] {
  return existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as { texts: TextResult[] }).texts : []
}

/** Later results of a text take the place of earlier ones, selector by selector. */
export function mergeTexts(texts: readonly TextResult[]): TextResult[] {
  const merged = new Map<string, TextResult>()
  for (const { tokens, seed, scores } of texts) {
    const key = `${tokens}/${seed}`
    const same = (a: Score) => (b: Score) => a.name === b.name && a.k === b.k
    const kept = (merged.get(key)?.scores ?? []).filter((old) => !scores.some(same(old)))
    merged.set(key, { tokens, seed, scores: [...kept, ...scores] })
  }
  return [...merged.values()].sort((a, b) => a.tokens - b.tokens || a.seed - b.seed)
}

/** Sums over the texts of a length, in the order in which selectors first come. */
export function cellsOf(texts: readonly TextResult[]): Cell[] {
  const cells = new Map<string, Cell>()
  for (const { tokens, scores } of texts)
    for (const score of scores) {
      const key = [tokens, score.k, score.name].join()
      const old = cells.get(key) ?? { ...score, tokens, texts: 0, right: 0, asked: 0, rows: 0 }
      const n = old.texts
      const rows = (old.rows * n + score.rows) / (n + 1)
      cells.set(key, { ...old, texts: n + 1, right: old.right + score.right, asked: old.asked + score.asked, rows })
    }
  return [...cells.values()].sort((a, b) => a.tokens - b.tokens || a.k - b.k)
}

/** Cells in which the package is more than one answer below exact top-K. */
export function missed(cells: readonly Cell[]): string[] {
  return cells.flatMap(({ name, tokens, k, right, asked }) => {
    const best = cells.find((cell) => cell.name === BEST.name && cell.tokens === tokens && cell.k === k)
    if (!name.startsWith('ParisKV') || !best || right >= best.right - 1) return []
    return [`${name}, K ${k}, ${tokens} tokens: ${right} of ${asked}, exact top-K ${best.right}`]
  })
}

/** One table a length: a line a selector, a column a K. */
export function tableOf(cells: readonly Cell[], bytes: (name: string) => number): string {
  return [...new Set(cells.map(({ tokens }) => tokens))].map((tokens) => tableAt(cells, tokens, bytes)).join('\n\n')
}

function tableAt(all: readonly Cell[], tokens: number, bytes: (name: string) => number): string {
  const cells = all.filter((cell) => cell.tokens === tokens)
  const ks = [...new Set(cells.map(({ k }) => k))].filter((k) => k > 0)
  const names = [...new Set(cells.map(({ name }) => name))]
  const { texts } = cells[0]
  const line = (first: string, rest: readonly string[]) => first.padEnd(24) + rest.map((x) => x.padStart(16)).join('')
  const head = line('answers right (rows)', ['bytes a key', ...ks.map((k) => `K ${k}`)])
  const lines = names.map((name) => {
    const columns = ks.map((k) => {
      const cell = cells.find((c) => c.name === name && (c.k === k || name === EXACT.name))
      return cell ? `${cell.right}/${cell.asked} (${Math.round(cell.rows)})` : ''
    })
    return line(name, [String(Math.round(bytes(name) * 10) / 10), ...columns])
  })
  return [`${tokens} tokens, ${texts} ${texts === 1 ? 'text' : 'texts'}`, head, ...lines].join('\n')
}

/** Writes a JSON file, its folder too. */
export function writeJson(file: string, value: unknown): void {
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(file, `${JSON.stringify(value, null, 2)}\n`)
}
