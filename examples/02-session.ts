/** Session: a prompt, then tokens one by one, two layers, and what the session knows about itself. */
import { createEngine } from 'pariskv'

const shape = { layers: 2, queryHeads: 8, kvHeads: 2, headDim: 64 }
const random = (length: number) => Float32Array.from({ length }, () => Math.random() * 2 - 1)
const prompt = 3000

const engine = await createEngine()
try {
  const session = await engine.createSession({ ...shape, capacity: 4096, policy: { k: 64, auditEvery: 4 } })
  for (let layer = 0; layer < shape.layers; layer++) {
    const size = shape.kvHeads * prompt * shape.headDim
    await session.append(layer, { keys: random(size), values: random(size) })
  }
  for (let token = 0; token < 16; token++)
    for (let layer = 0; layer < shape.layers; layer++) {
      const size = shape.kvHeads * shape.headDim
      await session.append(layer, { keys: random(size), values: random(size) })
      await session.attend(layer, { queries: random(shape.queryHeads * shape.headDim) })
    }
  const { layers, calls, recall } = session.stats()
  console.log('zones of layer 0:', layers[0].zones)
  console.log('calls:', calls)
  console.log(`recall of ${recall.audits} audited steps on random keys, the hardest case: ${recall.mean.toFixed(2)}`)
  console.log(`memory: ${(session.memory().total / 2 ** 20).toFixed(1)} MiB`)
} finally {
  await engine.dispose()
}
