import { runAll } from '../support/bare-vitest.ts'

/** Loads suites by their addresses and runs what they registered; the name of each test goes to the console as debug. */
export async function run(addresses: readonly string[]): ReturnType<typeof runAll> {
  for (const address of addresses) await import(address)
  return runAll((name) => console.debug(name))
}
