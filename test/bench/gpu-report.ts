import { writeFileSync } from 'node:fs'

/** What a bench prints, kept as JSON beside it: with `OUT=DIR`, in `DIR/NAME`. */
export class Report {
  private readonly results: object[] = []

  /** @param only names of the parts that are run, all of them by default */
  constructor(
    private readonly name: string,
    private readonly only?: readonly string[],
  ) {}

  wants(part: string): boolean {
    return this.only?.includes(part) ?? true
  }

  /** Runs one part; what it measured before a failure stays. */
  async section(part: string, name: string, body: () => Promise<void>): Promise<void> {
    if (!this.wants(part)) return
    const from = performance.now()
    console.log(`== ${name}`)
    try {
      await body()
    } catch (error) {
      this.add(`${name} failed: ${error instanceof Error ? error.stack : error}`, {
        section: name,
        failed: String(error),
      })
      process.exitCode = 1
    }
    console.log(`   (${((performance.now() - from) / 1000).toFixed(1)} s)\n`)
  }

  /** Prints a line and keeps its values. */
  add(line: string, values: object): void {
    console.log(line)
    this.results.push(values)
    if (process.env.OUT) writeFileSync(`${process.env.OUT}/${this.name}`, JSON.stringify(this.results, null, 1))
  }
}

/** The value of `--name=value` on the command line. */
export function given(name: string): string | undefined {
  return process.argv.find((arg) => arg.startsWith(`--${name}=`))?.slice(name.length + 3)
}
