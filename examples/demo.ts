/**
 * The main job on real input: keys, values and queries that a trained model stored go through a session token by token;
 * each captured query decodes one step. Prints what retrieval finds and what it costs against exact attention.
 */
import { createEngine, type Engine, type PolicyOptions, type Session, summaryBytes, zonesOf } from 'pariskv'
import { loadCapture, queriesAt, tokensOf } from './support/capture.ts'
import { Exact } from './support/exact.ts'
import { progressBar } from './support/progress.ts'
import { printRows, type Row, relativeError } from './support/rows.ts'

/** What exact attention says at one captured position. */
interface Truth {
  readonly output: Float64Array
  readonly probabilities: readonly Float64Array[]
  /** The K keys of the retrieval zone with the largest exact products. */
  readonly best: ReadonlySet<number>
}

const capture = loadCapture()
const prompt = capture.tokens - capture.positions
const upTo = (n: number) => Array.from({ length: n }, (_, i) => i)

/** Exact attention everywhere, and the best that any choice of K keys could do. */
function exactTruths(policy: Session['config']['policy']): { truths: Truth[]; best: Row } {
  const exact = new Exact(capture)
  const bar = progressBar('exact')
  const best: Row = { name: 'exact top-K', recall: 1, mass: 0, error: 0, bytes: 2 * capture.headDim, ms: Number.NaN }
  const truths = upTo(capture.positions).map((p) => {
    const length = prompt + p + 1
    const { sink, retrieval } = zonesOf(length, policy)
    const truth = { ...exact.attend(p, upTo(length)), best: exact.topK(p, sink, sink + retrieval, policy.k) }
    const attended = attendedOf(truth.best, length, policy)
    best.mass += massOf(truth.probabilities, attended) / capture.positions
    best.error += relativeError(exact.attend(p, [...attended]).output, truth.output) / capture.positions
    bar(p + 1, capture.positions)
    return truth
  })
  return { truths, best }
}

/** Plays the capture through a session: the prompt at once, then token by token with a decode step each. */
async function play(engine: Engine, name: string, policy: PolicyOptions, truths: readonly Truth[]): Promise<Row> {
  const { queryHeads, headDim, tokens } = capture
  const session = await engine.createSession({ layers: 1, queryHeads, kvHeads: 1, headDim, capacity: tokens, policy })
  const loading = progressBar(`${name} load`)
  await session.append(0, tokensOf(capture, 0, prompt), { onProgress: ({ done, total }) => loading(done, total) })
  const row: Row = { name, recall: 0, mass: 0, error: 0, bytes: bytesRead(session), ms: 0 }
  const times: number[] = []
  const decoding = progressBar(`${name} decode`)
  for (const [p, truth] of truths.entries()) {
    await session.append(0, tokensOf(capture, prompt + p, prompt + p + 1))
    const queries = queriesAt(capture, p)
    const start = performance.now()
    const { output } = await session.attend(0, { queries })
    times.push(performance.now() - start)
    const length = prompt + p + 1
    const attended = isDense(session) ? new Set(upTo(length)) : await attendedBy(session, queries, length)
    row.error += relativeError(output, truth.output) / truths.length
    row.mass += massOf(truth.probabilities, attended) / truths.length
    row.recall += [...truth.best].filter((n) => attended.has(n)).length / truth.best.size / truths.length
    decoding(p + 1, truths.length)
  }
  row.ms = times.sort((a, b) => a - b)[Math.floor(times.length / 2)]
  await session.dispose()
  return row
}

const isDense = (session: Session) => session.config.policy.denseBelow > capture.tokens

/** Bytes read a key of the retrieval zone: its summary, or its whole key and value where attention is dense. */
function bytesRead(session: Session): number {
  const { policy, shape } = session.config
  return isDense(session) ? 4 * capture.headDim : summaryBytes(shape.paddedDim, policy.normWeighted)
}

async function attendedBy(session: Session, queries: ReturnType<typeof queriesAt>, length: number) {
  const { indices } = await session.retrieve(0, { queries })
  return attendedOf(indices, length, session.config.policy)
}

/** sink ∪ retrieved ∪ local ∪ buffer. */
function attendedOf(retrieved: Iterable<number>, length: number, policy: Session['config']['policy']): Set<number> {
  const { sink, retrieval } = zonesOf(length, policy)
  return new Set([...upTo(sink), ...retrieved, ...upTo(length).slice(sink + retrieval)])
}

/** Share of the exact attention that falls on some positions, mean over heads. */
function massOf(probabilities: readonly Float64Array[], attended: ReadonlySet<number>): number {
  let sum = 0
  for (const head of probabilities) for (const n of attended) sum += head[n]
  return sum / probabilities.length
}

const engine = await createEngine()
try {
  console.log(`backend: ${engine.info.backend} (${engine.info.description})`)
  for (const { name, reason } of engine.info.passedOver) console.log(`  passed over ${name}: ${reason}`)
  console.log(`input: ${capture.tokens} tokens of a trained model's attention head, ${capture.positions} decode steps`)
  const probe = await engine.createSession({ layers: 1, queryHeads: 4, kvHeads: 1, headDim: 128, capacity: 1 })
  const { truths, best } = exactTruths(probe.config.policy)
  printRows([
    await play(engine, 'exact', { denseBelow: 1 << 20 }, truths),
    best,
    await play(engine, 'collision', { coarse: 'collision' }, truths),
    await play(engine, 'signs', { coarse: 'signs' }, truths),
  ])
} finally {
  await engine.dispose()
}
