import fc from 'fast-check'
import { expect, it } from 'vitest'
import { Engine } from '../../sdk/engine.ts'
import { ParisError } from '../../sdk/errors.ts'
import type { Session } from '../../sdk/session/session.ts'
import { backendCases, onEveryBackend } from '../support/backends.ts'
import { anyCall, anyOptions, type Call, play } from '../support/random-calls.ts'
import { expectSame } from '../support/repeat.ts'
import { bytesOf, expectSameState, snapshotOf } from '../support/sessions.ts'

type Result = readonly ArrayLike<number>[]

interface Step {
  readonly call: Call | 'snapshot'
  /** Aborts the call at that report of progress; 0 is never. */
  readonly abortAt: number
  /** Gives other calls a turn before the next one is made. */
  readonly pause: boolean
}

const anyStep: fc.Arbitrary<Step> = fc.record({
  call: fc.oneof({ weight: 8, arbitrary: anyCall }, { weight: 1, arbitrary: fc.constant('snapshot' as const) }),
  abortAt: fc.oneof({ weight: 2, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: fc.integer({ min: 1, max: 2 }) }),
  pause: fc.boolean(),
})

const REFUSALS = ['aborted', 'capacity', 'bad_length', 'snapshot_stale']

/** Minutes on a software GPU. */
const TIMEOUT = 900_000

onEveryBackend(
  { name: 'calls that nobody waits for', notOnSoftwareGpu: 'each random shape compiles pipelines of its own' },
  (_, name) => {
    const open = async () => {
      const backend = await backendCases.find((entry) => entry.name === name)!.open()
      return { backend, engine: new Engine(backend) }
    }

    async function make(engine: Engine, session: Session, { call, abortAt }: Step): Promise<Result> {
      if (call === 'snapshot') return [await bytesOf(session.snapshot())]
      const stop = new AbortController()
      let reports = 0
      const onProgress = () => {
        if (++reports === abortAt) stop.abort()
      }
      return play(engine, session, call, { signal: stop.signal, onProgress })
    }

    it(
      'do what those that were not refused do one after the other',
      () =>
        fc.assert(
          fc.asyncProperty(anyOptions, fc.array(anyStep, { minLength: 5, maxLength: 25 }), async (options, steps) => {
            const { backend, engine } = await open()
            const session = await engine.createSession(options)
            const pending: Promise<Result | undefined>[] = []
            for (const step of steps) {
              const result = make(engine, session, step).catch((error: unknown) => {
                if (error instanceof ParisError && REFUSALS.includes(error.code)) return undefined
                throw error
              })
              result.catch(() => {})
              pending.push(result)
              if (step.pause) await new Promise((resolve) => setTimeout(resolve))
            }
            const results = await Promise.all(pending)

            const replay = await open()
            const want = await replay.engine.createSession(options)
            for (const [i, got] of results.entries()) {
              if (!got) continue
              const result = await make(replay.engine, want, { ...steps[i], abortAt: 0 })
              result.forEach((array, j) => expectSame(got[j], array, `result ${j} of step ${i}`))
            }
            await expectSameState(session, want)
            const file = await snapshotOf(want)
            expectSame(await snapshotOf(await engine.restore(session.snapshot())), file, 'restored')
            expectSame(await snapshotOf(await session.fork()), file, 'forked')
            expect(await session.check()).toMatchObject({ ok: true })
            for (const one of [{ backend, engine }, replay]) {
              await one.engine.dispose()
              expect(one.backend.allocated()).toBe(0)
            }
          }),
          { numRuns: name === 'webgpu' ? 5 : 30 },
        ),
      TIMEOUT,
    )
  },
)
