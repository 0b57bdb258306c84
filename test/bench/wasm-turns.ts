/** Milliseconds of one method: median of all runs, and median of each turn's first run. */
export interface Timed {
  ms: number
  coldMs: number
}

/** A turn repeats a method for this long. */
const TURN_MS = 4

const median = (values: number[]) => values.sort((a, b) => a - b)[values.length >> 1]

/** Gives every method a turn a round, in order; two rounds before do not count. */
export function takeTurns(rounds: number, methods: Record<string, () => void>): Record<string, Timed> {
  const samples = Object.entries(methods).map(([name, run]) => ({
    name,
    run,
    all: [] as number[],
    first: [] as number[],
  }))
  for (let round = -2; round < rounds; round++)
    for (const { run, all, first } of samples) {
      const turn: number[] = []
      const end = performance.now() + TURN_MS
      do {
        const start = performance.now()
        run()
        turn.push(performance.now() - start)
      } while (performance.now() < end)
      if (round < 0) continue
      all.push(...turn)
      first.push(turn[0])
    }
  return Object.fromEntries(samples.map(({ name, all, first }) => [name, { ms: median(all), coldMs: median(first) }]))
}
