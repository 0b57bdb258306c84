import { expect } from 'vitest'
import type { Backend } from '../../sdk/backend.ts'
import type { PolicyOptions, SessionOptions } from '../../sdk/config.ts'
import type { Engine } from '../../sdk/engine.ts'
import { ParisError } from '../../sdk/errors.ts'
import type { Session } from '../../sdk/session/session.ts'
import { expectSame } from './repeat.ts'
import { options, queriesAt, type Sequence } from './sessions.ts'

/** The same session twice: its rows on the host, and on the device. */
export interface Twins {
  readonly host: Session
  readonly device: Session
}

/** Opens twins on one engine; the window and the cache of hot rows are small enough to move all the time. */
export async function openTwins(
  engine: Engine,
  over: Partial<SessionOptions> = {},
  policy: PolicyOptions = {},
): Promise<Twins> {
  const open = (offload: 'always' | 'never') => engine.createSession(options(over, { hotRows: 12, ...policy, offload }))
  return { host: await open('always'), device: await open('never') }
}

/** Both give the same bytes for these queries. */
export async function expectSameStep(
  { host, device }: Twins,
  queries: Float32Array,
  layer = 0,
  what = '',
): Promise<void> {
  const [got, want] = [await host.attend(layer, { queries }), await device.attend(layer, { queries })]
  expectSame(got.output, want.output, `output ${what}`)
  expectSame(got.lse, want.lse, `lse ${what}`)
}

/** The same for retrieval. */
export async function expectSameRetrieval({ host, device }: Twins, seq: Sequence, t: number, layer = 0): Promise<void> {
  const input = { queries: queriesAt(seq, t) }
  const [got, want] = [await host.retrieve(layer, input), await device.retrieve(layer, input)]
  expectSame(got.indices, want.indices, 'indices')
  expectSame(got.scores, want.scores, 'scores')
}

/** A backend whose reads take some turns of the event loop more, of a number drawn by `turns`. */
export function delayed(backend: Backend, turns: () => number): Backend {
  const wait = async (count: number) => {
    for (let i = 0; i < count; i++) await new Promise((resolve) => setTimeout(resolve))
  }
  return {
    ...backend,
    async read(buf, offset, bytes) {
      await wait(turns())
      const got = await backend.read(buf, offset, bytes)
      await wait(turns())
      return got
    },
  }
}

/** A backend that is lost for good once `lose` is called: every call fails as on a device that is gone. */
export function losable(backend: Backend): { readonly backend: Backend; readonly lose: () => void } {
  let lost = false
  const kept = ['name', 'description', 'layout', 'recorder', 'parts', 'limits', 'allocated', 'dispose']
  const proxy = new Proxy(backend, {
    get(target, name) {
      if (name === 'check' || (lost && !kept.includes(String(name))))
        return () => {
          if (!lost) return target.check?.()
          throw new ParisError('device_lost', { where: 'a test', got: 'a lost device', want: 'one', fix: 'none' })
        }
      return Reflect.get(target, name)
    },
  })
  return {
    backend: proxy,
    lose: () => {
      lost = true
    },
  }
}

/** The session is offloaded, and pages hold its rows. */
export function expectOffloaded(session: Session): void {
  expect(session.state.cache?.offload).toBeDefined()
  expect(session.memory().pages).toBeGreaterThan(0)
}
