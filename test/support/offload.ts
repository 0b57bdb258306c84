import { expect } from 'vitest'
import type { Backend } from '../../sdk/backend.ts'
import { MemoryPages, type OpenPages, type PageTier } from '../../sdk/cache/pages.ts'
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

/** What a session asks of its tier; `rows` of a gather or scatter. */
export interface PageCall {
  readonly kind: 'take' | 'gather' | 'scatter'
  readonly rows: number
}

/** Pages in memory that answer late; `before` runs ahead of each call, may wait, and may throw for it. `tiers`: all opened. */
export function watchedPages(before: (call: PageCall) => void | Promise<void>): {
  readonly open: OpenPages
  readonly tiers: PageTier[]
} {
  const tiers: PageTier[] = []
  const watch = (inner: MemoryPages): PageTier => {
    const tier: PageTier = {
      pageBytes: inner.pageBytes,
      bytes: () => inner.bytes(),
      give: (page) => inner.give(page),
      async take() {
        await before({ kind: 'take', rows: 0 })
        return inner.take()
      },
      async gather(at, count, row, keys, values) {
        await before({ kind: 'gather', rows: count })
        inner.gather(at, count, row, keys, values)
      },
      async scatter(at, count, row, keys, values) {
        await before({ kind: 'scatter', rows: count })
        inner.scatter(at, count, row, keys, values)
      },
      fork: async () => watch(inner.fork()),
      dispose: async () => inner.dispose(),
    }
    tiers.push(tier)
    return tier
  }
  return { open: (pageBytes) => watch(new MemoryPages(pageBytes)), tiers }
}

/** So many turns of the event loop. */
export async function turns(count: number): Promise<void> {
  for (let i = 0; i < count; i++) await new Promise((resolve) => setTimeout(resolve))
}

/** A backend whose reads take some turns of the event loop more, of a number drawn by `count`. */
export function delayed(backend: Backend, count: () => number): Backend {
  return {
    ...backend,
    async read(buf, offset, bytes) {
      await turns(count())
      const got = await backend.read(buf, offset, bytes)
      await turns(count())
      return got
    },
    async readAll(parts) {
      await turns(count())
      const got = await backend.readAll(parts)
      await turns(count())
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
