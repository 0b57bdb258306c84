#!/usr/bin/env node
import { parseArgs } from 'node:util'
import { ParisError } from '../sdk/index.ts'

/** A command: its arguments in, its exit status out. */
interface Command {
  readonly summary: string
  readonly load: () => Promise<(argv: string[]) => Promise<number>>
}

/** Loaded when called, so that each brings only what it needs. */
const COMMANDS: Readonly<Record<string, Command>> = {
  serve: {
    summary: 'serve sessions over HTTP on this machine',
    load: async () => (await import('./cli-serve.ts')).serveCommand,
  },
  generate: {
    summary: 'continue a text with a model of a folder',
    load: async () => (await import('./cli-generate.ts')).generateCommand,
  },
}

const HELP = `Usage: pariskv <command> [options]

${Object.entries(COMMANDS)
  .map(([name, { summary }]) => `  pariskv ${name.padEnd(10)} ${summary}`)
  .join('\n')}

pariskv <command> --help tells a command's options.`

/** @returns the exit status: 0, 1 where it failed, 2 where it was called wrongly */
async function main([name, ...argv]: string[]): Promise<number> {
  const command = Object.hasOwn(COMMANDS, name ?? '') ? COMMANDS[name] : undefined
  if (!command) {
    const asked = name === undefined || name === 'help' || parseArgs({ args: [name], strict: false }).values.help
    console[asked ? 'log' : 'error'](asked ? HELP : `There is no command ${JSON.stringify(name)}.\n\n${HELP}`)
    return asked ? 0 : 2
  }
  try {
    return await (await command.load())(argv)
  } catch (error) {
    if (isUsage(error)) {
      console.error(`${error.message}\n\npariskv ${name} --help tells its options.`)
      return 2
    }
    console.error(error instanceof ParisError ? error.message : error)
    return 1
  }
}

/** What `parseArgs` throws at options that it does not know. */
function isUsage(error: unknown): error is Error {
  return error instanceof Error && String((error as { code?: unknown }).code).startsWith('ERR_PARSE_ARGS')
}

process.exitCode = await main(process.argv.slice(2))
