import { ParisError } from '../sdk/index.ts'

/** A command and one of its options, as `generate --top-k`. */
export type OptionName = `${'serve' | 'generate'} --${string}`

/** A whole number of an option. @throws ParisError `bad_config` */
export function parseCount(option: OptionName, text: string, from = 1, to = Number.MAX_SAFE_INTEGER): number {
  const value = Number(text)
  if (/^\d+$/.test(text) && value >= from && value <= to) return value
  throw badOption(option, JSON.stringify(text), `a whole number from ${from} to ${to}`)
}

const UNITS: Readonly<Record<string, number>> = { '': 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30 }

/** Bytes, as 512MiB. @throws ParisError `bad_config` */
export function parseBytes(option: OptionName, text: string): number {
  const [, digits, unit = ''] = /^(\d+) ?([kmg]ib)?$/i.exec(text) ?? []
  const bytes = Number(digits) * UNITS[unit.toLowerCase()]
  if (Number.isSafeInteger(bytes) && bytes > 0) return bytes
  throw badOption(option, JSON.stringify(text), 'bytes, as 8GiB, 512MiB or 1000000')
}

/** `bad_config` at an option that names the help of its command. */
export function badOption(option: OptionName, got: string, want: string): ParisError {
  const [command, where] = option.split(' ')
  return new ParisError('bad_config', { where, got, want, fix: `See pariskv ${command} --help.` })
}
