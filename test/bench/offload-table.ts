import type { MemoryUse } from '../../sdk/session/memory.ts'
import type { Decoded } from './gpu-llm-decode.ts'

/** One way to attend, measured. */
export interface TableRow extends Decoded {
  readonly way: string
  /** Milliseconds of a step on the clock that are not its layers'. */
  readonly head: number
  readonly layers: number
  /** Rows that a step found on the device, where rows are on the host. */
  readonly hits: string
  readonly memory: MemoryUse
}

const WIDTHS = [10, 9, 9, 9, 9, 9, 7, 8, 8, 8, 8, 8] as const
const NAMES = [
  'way',
  'tokens/s',
  'wall',
  'median',
  'GPU',
  'a layer',
  'hits',
  'rows',
  'codes',
  'hot',
  'scratch',
  'pages',
]

export const TABLE_HEAD = [
  'ms a token and a layer; rows found on the device; GB of the device, pages on the host',
  line(NAMES),
].join('\n')

export function tableLine({ way, tokensPerSecond, wall, middle, gpu, head, layers, hits, memory }: TableRow): string {
  const times = [wall, middle, gpu, (wall - head) / layers].map((ms) => (Number.isFinite(ms) ? ms.toFixed(3) : '-'))
  const { rows, summary, hot, scratch, pages } = memory
  const bytes = [rows, summary, hot, scratch, pages].map((n) => (n === undefined ? '-' : (n / 1e9).toFixed(2)))
  return line([way, tokensPerSecond.toFixed(1), ...times, hits, ...bytes])
}

function line(cells: readonly string[]): string {
  return cells.map((cell, i) => (i === 0 ? cell.padEnd(WIDTHS[i]) : cell.padStart(WIDTHS[i]))).join('')
}

/** The first place where logits of two ways differ; undefined where they are equal to the bit. */
export function firstDifference(a: readonly Float32Array[], b: readonly Float32Array[]): string | undefined {
  for (const [t, row] of a.entries()) {
    const [x, y] = [row, b[t]].map(({ buffer, byteOffset, length }) => new Uint32Array(buffer, byteOffset, length))
    const at = x.findIndex((bits, i) => bits !== y[i])
    if (at >= 0) return `token ${t}, logit ${at}: ${row[at]} and ${b[t][at]}`
  }
  return a.length === b.length ? undefined : `${a.length} tokens and ${b.length}`
}
