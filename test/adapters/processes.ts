import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { resolve } from 'node:path'
import { createInterface } from 'node:readline'

export const root = resolve(import.meta.dirname, '../..')

/** A process of the repository's, and the lines that it has printed. */
export function startProcess(program: string, args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const child = spawn(program, args, { cwd: root, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
  const exit = once(child, 'exit') as Promise<[number | null, string | null]>
  const lines: string[] = []
  const waiting = new Set<() => void>()
  for (const stream of [child.stdout, child.stderr])
    createInterface(stream).on('line', (line) => {
      lines.push(line)
      for (const look of waiting) look()
    })
  /** What the pattern's group holds, as soon as a line matches it. */
  const line = (pattern: RegExp) =>
    new Promise<string>((found, fail) => {
      const look = () => {
        const match = lines.map((text) => pattern.exec(text)).find((each) => each)
        if (!match) return
        waiting.delete(look)
        found(match[1])
      }
      waiting.add(look)
      look()
      void exit.then(([status]) => fail(new Error(`ended with ${status}: ${lines.join('\n')}`)), fail)
    })
  return { child, lines, line, exit }
}
