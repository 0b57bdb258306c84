import { ParisError } from '../sdk/index.ts'

/** A whole number of an option. @throws ParisError `bad_config` */
export function parseCount(option: string, text: string, from = 1, to = Number.MAX_SAFE_INTEGER): number {
  const value = Number(text)
  if (/^\d+$/.test(text) && value >= from && value <= to) return value
  throw badOption(option, text, `a whole number from ${from} to ${to}`)
}

const UNITS: Readonly<Record<string, number>> = { '': 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30 }

/** Bytes, as 512MiB. @throws ParisError `bad_config` */
export function parseBytes(option: string, text: string): number {
  const [, digits, unit = ''] = /^(\d+) ?([kmg]ib)?$/i.exec(text) ?? []
  const bytes = Number(digits) * UNITS[unit.toLowerCase()]
  if (Number.isSafeInteger(bytes) && bytes > 0) return bytes
  throw badOption(option, text, 'bytes, as 8GiB, 512MiB or 1000000')
}

function badOption(option: string, text: string, want: string): ParisError {
  return new ParisError('bad_config', {
    where: option,
    got: JSON.stringify(text),
    want,
    fix: 'See pariskv serve --help.',
  })
}
