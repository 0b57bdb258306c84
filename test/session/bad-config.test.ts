import { describe, expect, it } from 'vitest'
import { createReferenceBackend } from '../../sdk/backends/reference.ts'
import type { SessionOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import type { ErrorCode } from '../../sdk/errors.ts'
import { options, refused } from '../support/sessions.ts'

describe('a bad configuration', () => {
  const engine = new Engine(createReferenceBackend())

  async function refuses(given: unknown, code: ErrorCode, field: string, got?: string) {
    for (const call of [
      () => engine.createSession(given as SessionOptions),
      async () => engine.estimate(given as SessionOptions),
    ]) {
      const error = await refused(call, code)
      expect(`${error.where} ${error.got} ${error.want}`).toContain(field)
      if (got !== undefined) expect(error.got).toBe(got)
    }
  }
  const policy = (change: object) => ({ ...options(), policy: change })

  it.each([0, 4, 12, 100, 264, 512, -8, 8.5, Number.NaN, Number.POSITIVE_INFINITY, '64', null, undefined])(
    'with a head dimension of %s',
    async (headDim) => {
      const got = typeof headDim === 'string' ? '"64"' : String(headDim)
      await refuses({ ...options(), headDim }, 'bad_head_dim', 'headDim', got)
    },
  )

  it.each([0, -1, 1.5, Number.NaN, 2 ** 21, '8', null])('with a k of %s', async (k) => {
    await refuses(policy({ k }), 'bad_k', 'policy.k')
  })

  it.each([
    ['layers', 0],
    ['layers', 1.5],
    ['layers', undefined],
    ['queryHeads', 0],
    ['queryHeads', Number.NaN],
    ['kvHeads', -2],
    ['kvHeads', '2'],
    ['capacity', 0],
    ['capacity', 2 ** 28 + 1],
    ['capacity', Number.POSITIVE_INFINITY],
    ['seed', -1],
    ['seed', 2 ** 32],
    ['seed', 0.5],
    ['store', 'f64'],
    ['scale', 0],
    ['scale', -1],
    ['scale', Number.NaN],
    ['policy', null],
    ['policy', 'fast'],
  ])('with %s of %s', async (field, value) => {
    await refuses({ ...options(), [field]: value }, 'bad_config', field)
  })

  it.each([
    ['coarse', 'exact'],
    ['sink', -1],
    ['local', 0.5],
    ['update', 0],
    ['group', 'sum'],
    ['beta', 0],
    ['beta', 1.1],
    ['rho', -0.1],
    ['rho', Number.NaN],
    ['denseBelow', -1],
    ['normWeighted', 'yes'],
    ['auditEvery', 1.5],
    ['preset', 'slow'],
    ['preset', 'toString'],
  ])('with a policy of %s: %s', async (field, value) => {
    await refuses(policy({ [field]: value }), 'bad_config', `policy.${field}`)
  })

  it('with a field that nobody knows, naming it and those that are', async () => {
    await refuses({ ...options(), headDims: 64 }, 'bad_config', 'queryHeads', 'the unknown field "headDims"')
    await refuses(policy({ topK: 3 }), 'bad_config', 'denseBelow', 'the unknown field "topK"')
    await refuses({ ...options(), a: 1, b: 2 }, 'bad_config', 'capacity', 'the unknown field "a", "b"')
  })

  it('with query heads that do not share KV heads evenly', async () => {
    await refuses({ ...options(), queryHeads: 3 }, 'bad_config', 'queryHeads', '3 query heads on 2 KV heads')
    await refuses({ ...options(), queryHeads: 1 }, 'bad_config', 'queryHeads')
  })

  it('of a size that no number holds', async () => {
    const given = { layers: 1024, queryHeads: 1024, kvHeads: 1024, headDim: 256, capacity: 2 ** 28 }
    await refuses(given, 'out_of_memory', 'bytes')
  })

  it('allocates nothing and leaves the engine as it was', async () => {
    const backend = createReferenceBackend()
    const own = new Engine(backend)
    await refused(own.createSession({ ...options(), store: 'f32', headDim: 12 }), 'bad_head_dim')
    expect(backend.allocated()).toBe(0)
    const session = await own.createSession(options({ store: 'f32' }))
    expect(session.length()).toBe(0)
  })

  it('is none where only what is needed is given: every default is filled in', async () => {
    const given = { layers: 1, queryHeads: 2, kvHeads: 1, headDim: 64, capacity: 10 }
    const { config } = await engine.createSession(given)
    expect(config).toMatchObject({ seed: 42, store: undefined, scale: 1 / 8 })
    expect(config.policy).toEqual({
      coarse: 'signs',
      k: 100,
      sink: 64,
      local: 256,
      update: 256,
      group: 'mean',
      denseBelow: 2000,
      normWeighted: false,
      auditEvery: 0,
      offload: 'auto',
    })
  })
})
