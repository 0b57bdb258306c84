import { readdirSync, readFileSync, writeFileSync } from 'node:fs'

const folder = new URL('.', import.meta.url)

/** The text of sources.ts for the .wgsl files beside this script. */
export function embed(): string {
  const files = readdirSync(folder)
    .filter((file) => file.endsWith('.wgsl'))
    .sort()
  const quote = (text: string) => `\`${text.replace(/[\\`]|\$\{/g, (c) => `\\${c}`)}\``
  const entries = files.map((file) => {
    const name = file.slice(0, -5)
    const key = name.includes('-') ? `'${name}'` : name
    return `  ${key}: ${quote(readFileSync(new URL(file, folder), 'utf8'))},`
  })
  return `// Written by wgsl/embed.ts: the text of every .wgsl file here.\nexport const SOURCES = {\n${entries.join('\n')}\n} as const\n`
}

if (process.argv[1]?.endsWith('embed.ts')) writeFileSync(new URL('sources.ts', folder), embed())
