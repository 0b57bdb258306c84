// Milliseconds a token of needle-9m at 16,384 tokens on one core in WebAssembly: ParisKV at its default and at 2%, and exact
// attention, turn by turn. The cache holds random keys, as times do not depend on them. `npm run bench:decode`
import { fileURLToPath } from 'node:url'
import { createEngine } from 'pariskv'
import { loadModel, type Model, openModelFolder } from 'pariskv/llm'
import { Context } from '../../sdk/llm/context.ts'

const N = 16_384
const STEPS = 200
const WARM = 40

const engine = await createEngine({ device: 'wasm' })
try {
  const folder = fileURLToPath(new URL('../../examples/models/needle-9m/', import.meta.url))
  const model = await loadModel({ engine, source: await openModelFolder(folder) })
  const full = await filled(model, { attention: 'full' })
  const ways: [string, Context][] = [
    ['full', full],
    ['signs, default', await filled(model, {})],
    ['signs, β .02', await filled(model, { policy: { beta: 0.02 } })],
  ]
  const times = ways.map((): number[] => [])
  for (let i = 0; i < WARM + STEPS; i++)
    for (const [w, [, context]] of ways.entries()) {
      const from = performance.now()
      await context.step(4 + ((i * 13) % 400))
      if (i >= WARM) times[w].push(performance.now() - from)
    }
  const at = (values: number[], share: number) => [...values].sort((a, b) => a - b)[Math.floor(share * values.length)]
  for (const [w, [name]] of ways.entries()) {
    const [p10, p50] = [at(times[w], 0.1), at(times[w], 0.5)]
    const ratio = times[0].map((time, i) => time / times[w][i])
    console.log(
      `${name.padEnd(16)} p10 ${p10.toFixed(2)} ms, p50 ${p50.toFixed(2)} ms, ${(1e3 / p50).toFixed(0)} tokens/s, ${at(ratio, 0.5).toFixed(1)} times full`,
    )
  }
} finally {
  await engine.dispose()
}

/** A context of N tokens that never went through the model. */
async function filled(model: Model, options: Parameters<Model['createContext']>[0] | object): Promise<Context> {
  const opened = await model.createContext({ ...options, capacity: N + WARM + STEPS })
  const { layers, kvHeads, headDim } = model.config
  const rows = (scale: number, seed: number) =>
    Float32Array.from({ length: kvHeads * N * headDim }, (_, i) => scale * Math.sin(i * 12.9898 + seed * 78.233))
  for (let l = 0; l < layers; l++) await opened.session.append(l, { keys: rows(2, l), values: rows(1, l + 9) })
  const context = new Context(opened.host, opened.session)
  for (let i = 0; i < N; i++) context.accept(4 + ((i * 7) % 400))
  return context
}
