/** Retrieve: which of many stored keys matter for a query. */
import { createEngine } from 'pariskv'
import { loadCapture, queriesAt, tokensOf } from './support/capture.ts'

const capture = loadCapture()
const engine = await createEngine()
const session = await engine.createSession({
  layers: 1,
  queryHeads: 4,
  kvHeads: 1,
  headDim: 128,
  capacity: capture.tokens,
})
try {
  await session.append(0, tokensOf(capture, 0, capture.tokens))
  const { indices, scores } = await session.retrieve(0, { queries: queriesAt(capture, 255), k: 5 })
  console.log('the five keys that matter most for the last query:')
  indices.forEach((position, i) => console.log(`  position ${position}, estimated product ${scores[i].toFixed(2)}`))
} finally {
  await engine.dispose()
}
