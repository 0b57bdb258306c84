/** One line of the demo's table. */
export interface Row {
  readonly name: string
  recall: number
  mass: number
  error: number
  readonly bytes: number
  /** NaN where nothing was timed. */
  ms: number
}

const HEADINGS = ['recall@100', 'attention mass', 'output error', 'bytes a key', 'ms a step']

/** Prints the table and what its columns mean. */
export function printRows(rows: readonly Row[]): void {
  console.log(`\n${' '.repeat(12)}${HEADINGS.map((heading) => heading.padStart(15)).join('')}`)
  for (const { name, recall, mass, error, bytes, ms } of rows) {
    const time = Number.isNaN(ms) ? '' : ms.toFixed(2)
    const cells = [recall.toFixed(3), mass.toFixed(4), error.toExponential(1), String(bytes), time]
    console.log(name.padEnd(12) + cells.map((cell) => cell.padStart(15)).join(''))
  }
  console.log(`
recall@100      share of the 100 keys with the largest exact products that was found
attention mass  share of exact softmax attention on the tokens attended to: sink, retrieved, local, buffer
output error    relative distance to exact float64 attention over everything
bytes a key     read to search the retrieval zone, or to attend to all of it
exact top-K     the best that any choice of 100 keys by inner product could do`)
}

/** ‖got − want‖ / ‖want‖. */
export function relativeError(got: ArrayLike<number>, want: Float64Array): number {
  let difference = 0
  let size = 0
  want.forEach((w, i) => {
    difference += (got[i] - w) ** 2
    size += w * w
  })
  return Math.sqrt(difference / size)
}
