import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { exactAttention, upTo } from '../support/exact.ts'
import { expectNear, expectSame } from '../support/repeat.ts'
import { expectSameState, feed, NEAR, options, queriesAt, rows, sequence, tokensOf } from '../support/sessions.ts'

onEveryBackend('prefill', (backend, name) => {
  const N = 600
  const seq = sequence(61, N)
  const open = () => new Engine(backend()).createSession(options({ capacity: 700 }))
  const prompt = (from: number, to: number) => ({
    ...rows(seq, from, to),
    queries: tokensOf(seq.queries, N, 16, from, to),
  })

  /** Checks tokens [from, to) of a result against causal attention, every `every`-th. */
  function expectCausal(got: { output: Float32Array; lse: Float32Array }, from: number, to: number, every = 1) {
    const T = to - from
    expect([got.output.length, got.lse.length]).toEqual([4 * T * 16, 4 * T])
    for (let t = from; t < to; t += every) {
      const want = exactAttention(seq, queriesAt(seq, t), upTo(t + 1))
      const output = tokensOf(got.output, T, 16, t - from, t - from + 1)
      const lse = tokensOf(got.lse, T, 1, t - from, t - from + 1)
      expectNear(output, want.output, NEAR[name] * 5, `output of token ${t}`)
      expectNear(lse, want.lse, 1e-4, `lse of token ${t}`)
    }
  }

  it('is exact causal attention', async () => {
    expectCausal(await (await open()).prefill(0, prompt(0, 40)), 0, 40)
    expectCausal(await (await open()).prefill(0, prompt(0, 1)), 0, 1)
  })

  it('goes on from what is there, and stays exact past the length that decoding reads whole', async () => {
    const session = await open()
    await feed(session, seq, 0, 200)
    expectCausal(await session.prefill(0, prompt(200, 260)), 200, 260, 7)
  })

  it('takes prompts longer than it works on at once', async () => {
    for (const T of [256, 257, N]) expectCausal(await (await open()).prefill(0, prompt(0, T)), 0, T, 51)
  })

  it('in parts equals one, and both leave what an append leaves', async () => {
    const [once, parts, appended] = [await open(), await open(), await open()]
    const whole = await once.prefill(0, prompt(0, 300))
    await feed(appended, seq, 0, 300)
    let at = 0
    for (const size of [1, 99, 150, 50]) {
      const part = await parts.prefill(0, prompt(at, at + size))
      expectNear(part.output, tokensOf(whole.output, 300, 16, at, at + size), NEAR[name] * 5, 'output')
      expectNear(part.lse, tokensOf(whole.lse, 300, 1, at, at + size), 1e-4, 'lse')
      at += size
    }
    await expectSameState(parts, once)
    await expectSameState(appended, once)
  })

  it('then decodes as after an append', async () => {
    const [prefilled, appended] = [await open(), await open()]
    await prefilled.prefill(0, prompt(0, 500))
    await feed(appended, seq, 0, 500)
    const step = async (session: Session, t: number) => {
      await feed(session, seq, t, t + 1)
      return session.attend(0, { queries: queriesAt(seq, t) })
    }
    for (let t = 500; t < 520; t++) {
      const [a, b] = [await step(prefilled, t), await step(appended, t)]
      expectSame(a.output, b.output, 'output')
      expectSame(a.lse, b.lse, 'lse')
    }
  })

  it('of no tokens is empty and counts as a call', async () => {
    const session = await open()
    const empty = new Float32Array(0)
    const { output, lse } = await session.prefill(0, { keys: empty, values: empty, queries: empty })
    expect([output.length, lse.length, session.length()]).toEqual([0, 0, 0])
    expect(session.stats().calls.prefill).toBe(1)
  })
})
