import { expect, test } from 'vitest'
import { createEngine } from '../../../adapters/workers.ts'

test('the engine runs in workerd on the imported module', async () => {
  const engine = await createEngine()
  expect(engine.info.backend).toBe('wasm')
  const session = await engine.createSession({ layers: 1, queryHeads: 1, kvHeads: 1, headDim: 8, capacity: 4 })
  const row = Float32Array.of(1, 0.5, 0, 0, 0, 0, 0, 0)
  await session.append(0, { keys: row, values: row })
  const { output } = await session.attend(0, { queries: row })
  expect([...output.slice(0, 2)]).toEqual([1, 0.5])
  await engine.dispose()
})
