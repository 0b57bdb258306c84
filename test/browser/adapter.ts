import { describe, expect, it } from 'vitest'
import { expectNear } from '../support/repeat.ts'
import { feed, NEAR, options, queriesAt, sequence } from '../support/sessions.ts'

/** Loaded as pages load it, a module of its own: it finds kernels.wasm by its own address. */
const adapter = () => import('../../adapters/browser.ts')

describe('the adapter for browsers', () => {
  const seq = sequence(301, 120)

  async function attend(device: 'webgpu' | 'wasm' | 'reference') {
    const { createEngine } = await adapter()
    await using engine = await createEngine({ device })
    const session = await engine.createSession(options())
    await feed(session, seq, 0, 120, 40)
    const { output } = await session.attend(0, { queries: queriesAt(seq, 119) })
    return { backend: engine.info.backend, output }
  }

  it.each(['webgpu', 'wasm'] as const)('appends and attends on %s', async (device) => {
    const [got, want] = [await attend(device), await attend('reference')]
    expect(got.backend).toBe(device)
    const largest = seq.values.reduce((most, v) => Math.max(most, Math.abs(v)), 0)
    expectNear(got.output, want.output, NEAR[device] * largest, 'output')
  })

  it('takes WebAssembly where the only GPU is a software GPU', async () => {
    const { createEngine } = await adapter()
    await using engine = await createEngine()
    expect(engine.info).toMatchObject({
      backend: 'wasm',
      passedOver: [{ name: 'webgpu', reason: expect.stringContaining('only a software GPU') }],
    })
  })
})
