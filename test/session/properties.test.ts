import fc from 'fast-check'
import { expect, it } from 'vitest'
import type { SessionOptions } from '../../sdk/config.ts'
import { Engine } from '../../sdk/engine.ts'
import { ParisError } from '../../sdk/errors.ts'
import type { Session } from '../../sdk/session/session.ts'
import { onEveryBackend } from '../support/backends.ts'
import { anyCall, anyOptions, type Call, play } from '../support/random-calls.ts'
import { expectSame } from '../support/repeat.ts'
import { expectSameState } from '../support/sessions.ts'

/** Minutes on a software GPU. */
const TIMEOUT = 900_000

onEveryBackend(
  { name: 'random sessions', notOnSoftwareGpu: 'each random shape compiles pipelines of its own' },
  (backend, name) => {
    const params = { numRuns: name === 'webgpu' ? 5 : 25 }
    const calls = fc.array(anyCall, { maxLength: 12 })
    const engine = () => new Engine(backend())

    /** What each call gave, or the code it was refused with. */
    async function playAll(session: Session, list: readonly Call[]) {
      const results: (string | (Float32Array | Uint32Array)[])[] = []
      for (const call of list)
        results.push(
          await play(engine(), session, call).catch((error: unknown) => {
            if (error instanceof ParisError && ['capacity', 'bad_length'].includes(error.code)) return error.code
            throw error
          }),
        )
      return results
    }

    async function expectSameRun(got: Session, want: Session, list: readonly Call[]) {
      const [a, b] = [await playAll(got, list), await playAll(want, list)]
      b.forEach((result, i) => {
        if (typeof result === 'string') expect(a[i]).toBe(result)
        else result.forEach((array, j) => expectSame(a[i][j] as typeof array, array, `result ${j} of call ${i}`))
      })
      await expectSameState(got, want)
    }

    async function played(options: SessionOptions, list: readonly Call[]) {
      const session = await engine().createSession(options)
      await playAll(session, list)
      return session
    }

    it(
      'go on after a snapshot and a restore as without them',
      () =>
        fc.assert(
          fc.asyncProperty(anyOptions, calls, calls, async (options, first, then) => {
            const want = await played(options, first)
            const got = await engine().restore(want.snapshot())
            await expectSameRun(got, want, then)
            await Promise.all([got.dispose(), want.dispose()])
          }),
          params,
        ),
      TIMEOUT,
    )

    it(
      'do not see what their forks do, nor forks their parents',
      () =>
        fc.assert(
          fc.asyncProperty(anyOptions, calls, calls, calls, async (options, first, here, there) => {
            const parent = await played(options, first)
            const fork = await parent.fork()
            const [a, b] = [await played(options, first), await played(options, first)]
            const half = here.length >> 1
            await expectSameRun(parent, a, here.slice(0, half))
            await expectSameRun(fork, b, there)
            await expectSameRun(parent, a, here.slice(half))
            await expectSameState(fork, b)
            await Promise.all([parent, fork, a, b].map((session) => session.dispose()))
          }),
          params,
        ),
      TIMEOUT,
    )

    it(
      'choose and give the same bytes in two runs',
      () =>
        fc.assert(
          fc.asyncProperty(anyOptions, fc.array(anyCall, { minLength: 5, maxLength: 20 }), async (options, list) => {
            const [one, other] = [await engine().createSession(options), await engine().createSession(options)]
            await expectSameRun(one, other, list)
            await Promise.all([one.dispose(), other.dispose()])
          }),
          params,
        ),
      TIMEOUT,
    )
  },
)
