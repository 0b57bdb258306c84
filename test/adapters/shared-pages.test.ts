import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { createRequire, syncBuiltinESMExports } from 'node:module'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { build } from 'esbuild'
import { afterEach, expect, it } from 'vitest'
import { type SharedPages, type SharedPagesOptions, sharedPages } from '../../adapters/shared-pages.ts'
import { MemoryPages } from '../../sdk/cache/pages.ts'
import { Engine } from '../../sdk/engine.ts'
import { backendCases } from '../support/backends.ts'
import { integer, random } from '../support/inputs.ts'
import { expectOffloaded, expectSameStep, openTwins, turns } from '../support/offload.ts'
import { expectSame } from '../support/repeat.ts'
import { expectSameState, feed, options, queriesAt, refused, rows, sequence } from '../support/sessions.ts'

const ROW = 48
/** Rows a page; a page is no multiple of a cache line. */
const ROWS = 37
const PAGE = ROWS * 2 * ROW

const tiers: SharedPages[] = []
const next = random(71)

/** Threads even where there are cores for none; all tiers are disposed of after a test. */
function opener(given: SharedPagesOptions = {}): () => SharedPages {
  const open = sharedPages({ threads: 3, ...given })
  return () => {
    const tier = open(PAGE) as SharedPages
    tiers.push(tier)
    return tier
  }
}

afterEach(async () => {
  for (const tier of tiers.splice(0)) await tier.dispose()
})

/** A tier and what it should hold. */
interface Pair {
  readonly tier: SharedPages
  readonly twin: MemoryPages
  readonly pages: number[]
}

function grow({ tier, twin, pages }: Pair, count: number): void {
  for (let i = 0; i < count; i++) {
    const page = tier.take()
    expect(twin.take()).toBe(page)
    pages.push(page)
  }
}

/** Random rows of random pages. */
function places({ pages }: Pair, count: number): Float64Array {
  const at = () => pages[integer(next, 0, pages.length - 1)] * PAGE + integer(next, 0, ROWS - 1) * 2 * ROW
  return Float64Array.from({ length: count }, at)
}

const bytes = (count: number) => Uint8Array.from({ length: count * ROW }, () => integer(next, 0, 255))

function scatter(pair: Pair, count: number): void {
  const [at, keys, values] = [places(pair, count), bytes(count), bytes(count)]
  for (const tier of [pair.tier, pair.twin]) tier.scatter(at, count, ROW, keys, values)
}

/** Every byte of every page is written. */
function fill(pair: Pair): void {
  const at = Float64Array.from(
    pair.pages.flatMap((p) => Array.from({ length: ROWS }, (_, i) => p * PAGE + i * 2 * ROW)),
  )
  const [keys, values] = [bytes(at.length), bytes(at.length)]
  for (const tier of [pair.tier, pair.twin]) tier.scatter(at, at.length, ROW, keys, values)
}

function openPair(open: () => SharedPages, pages = 9): Pair {
  const pair = { tier: open(), twin: new MemoryPages(PAGE), pages: [] }
  grow(pair, pages)
  fill(pair)
  return pair
}

/** Gathers into parts of larger arrays: what lies around them stays as it is. @returns what the tier's gather gave */
function gather(pair: Pair, count: number, room = (size: number) => pair.tier.room(size)): void | Promise<void> {
  const at = places(pair, count)
  const [size, before] = [count * ROW, integer(next, 0, 3) * 8]
  const got = [room(size + 64).fill(7), room(size + 64).fill(7)]
  const want = [new Uint8Array(size + 64).fill(7), new Uint8Array(size + 64).fill(7)]
  const part = (array: Uint8Array) => array.subarray(before, before + size)
  pair.twin.gather(at, count, ROW, part(want[0]), part(want[1]))
  const late = pair.tier.gather(at, count, ROW, part(got[0]), part(got[1]))
  const compare = () => got.forEach((array, i) => expectSame(array, want[i], ['keys', 'values'][i]))
  return late ? late.then(compare) : compare()
}

/** Gathers until threads have taken part. */
async function helped(pair: Pair, blocks = 1): Promise<void> {
  for (const until = Date.now() + 20_000; pair.tier.helped < blocks; await turns(1)) {
    if (Date.now() > until) expect.fail('no thread takes part')
    await gather(pair, 2000)
  }
}

it('gathers what memory on one thread gathers, over forks and writes, into any arrays', async () => {
  const open = opener({ leastRows: 33 })
  let all = [openPair(open)]
  await helped(all[0], 20)
  for (let step = 0; step < 400; step++) {
    const i = integer(next, 0, all.length - 1)
    const pair = all[i]
    const kind = integer(next, 0, 9)
    if (kind < 4) expect(gather(pair, integer(next, 0, 700))).toBeUndefined()
    else if (kind === 4) gather(pair, 200, (size) => new Uint8Array(size))
    else if (kind < 7) scatter(pair, integer(next, 1, 40))
    else if (kind === 7 && pair.pages.length < 30) {
      grow(pair, 3)
      fill(pair)
    } else if (kind === 8 && pair.pages.length > 2) {
      const page = pair.pages.splice(integer(next, 0, pair.pages.length - 1), 1)[0]
      for (const tier of [pair.tier, pair.twin]) tier.give(page)
    } else if (all.length < 5) {
      const fork = { tier: pair.tier.fork(), twin: pair.twin.fork(), pages: [...pair.pages] }
      tiers.push(fork.tier)
      all.push(fork)
    } else {
      await pair.tier.dispose()
      pair.twin.dispose()
      all = all.filter((other) => other !== pair)
    }
    for (const { tier, twin } of all) expect(tier.bytes()).toBe(twin.bytes())
    // Now and then the threads fall asleep, and read of what was given back.
    if (step % 50 === 0) await new Promise((resolve) => setTimeout(resolve, 10))
  }
})

it('has threads while there are tiers, and again later', async () => {
  const open = opener()
  const many = Array.from({ length: 12 }, () => openPair(open, 4))
  await helped(many[0])
  const before = many[0].tier.helped
  for (const pair of many) gather(pair, 1000)
  expect(many[5].tier.helped, 'counted for all').toBeGreaterThanOrEqual(before)
  for (const { tier } of many) await tier.dispose()
  expect(many[0].tier.helped).toBe(0)
  const again = openPair(open)
  await helped(again)
})

/** Changes the source of threads that are made until it is undone. */
function withCode<T>(change: (code: string) => string, body: () => Promise<T>): Promise<T> {
  const threads = createRequire(import.meta.url)('node:worker_threads')
  const { Worker } = threads
  const set = (value: unknown) => {
    threads.Worker = value
    syncBuiltinESMExports()
  }
  set(
    class extends Worker {
      constructor(code: string, given: object) {
        super(change(code), given)
      }
    },
  )
  return body().finally(() => set(Worker))
}

/** In the middle of a block, of the 40th that all threads have copied. */
const amid = (what: string) => (code: string) => {
  const changed = code.replace('let sum = 0', `let sum = 0; if (Atomics.load(words, HELPED) > 40) ${what}`)
  const helpedAt = /Atomics\.add\(words, (\d+), done\)/.exec(code)?.[1]
  return changed.replace('HELPED', String(helpedAt))
}

it.each([
  ['die', amid("throw new Error('a fault')")],
  ['exit', amid('process.exit(3)')],
  ['hang', amid('for (;;);')],
  [
    'are killed at once',
    (code: string) => `${code.slice(0, code.indexOf('for (let seen'))} throw new Error('a fault')`,
  ],
  ['cannot be made', () => Reflect.ownKeys(undefined as unknown as object).join()],
])('goes on alone where threads %s, and says so once', async (_, change) => {
  const warnings: Error[] = []
  const note = (warning: Error) => warnings.push(warning)
  process.on('warning', note)
  try {
    await withCode(change, async () => {
      const [pair, other] = [openPair(opener()), openPair(opener())]
      for (const one of [pair, other])
        for (const until = Date.now() + 20_000; warnings.length < 1 + Number(one === other); await turns(1)) {
          if (Date.now() > until) expect.fail('no thread failed')
          await gather(one, 2000)
        }
      const { helped } = pair.tier
      for (let i = 0; i < 20; i++) expect(gather(pair, 500)).toBeUndefined()
      expect(pair.tier.helped).toBe(helped)
    })
    await turns(3)
    expect(warnings.map(({ message }) => /threads that gather rows failed/.test(message))).toEqual([true, true])
  } finally {
    process.off('warning', note)
  }
})

it('serves sessions as memory does: steps, truncations, forks, snapshots, restored and recovered', async () => {
  const seq = sequence(361, 400)
  const opened: SharedPages[] = []
  const open = sharedPages({ threads: 3, leastRows: 1 })
  const pages = (pageBytes: number) => {
    opened.push(open(pageBytes) as SharedPages)
    return opened[opened.length - 1]
  }
  const engine = new Engine(await backendCases[1].open(), [], pages)
  const want = new Engine(await backendCases[1].open())
  const over = { layers: 2, store: 'bf16' } as const
  const policy = { k: 60, hotRows: 120 }
  try {
    const twins = await openTwins(engine, over, policy)
    const both = [twins.host, twins.device]
    for (const session of both) for (const layer of [0, 1]) await feed(session, seq, 0, 300, 70, layer)
    for (const until = Date.now() + 30_000; opened[0].helped === 0; await turns(1)) {
      if (Date.now() > until) expect.fail('no thread takes part')
      await (await twins.host.fork()).dispose()
    }
    for (let t = 300; t < 400; t++) {
      for (const session of both) await feed(session, seq, t, t + 1)
      await expectSameStep(twins, queriesAt(seq, t), t % 2, `of step ${t}`)
    }
    expectOffloaded(twins.host)
    const fork = await twins.host.fork()
    for (const session of both) {
      await session.truncate(100)
      await feed(session, sequence(362, 400), 100, 220, 33)
    }
    await expectSameStep(twins, queriesAt(seq, 220))
    await expectSameState(twins.host, twins.device)
    const whole = await want.createSession(options(over, { ...policy, offload: 'never' }))
    for (const layer of [0, 1]) await feed(whole, seq, 0, layer ? 300 : 400, 70, layer)
    await expectSameState(fork, whole)
    const restored = await engine.restore(fork.snapshot(), { placement: { offload: 'always', hotRows: 120 } })
    const recovered = await want.recover(twins.host)
    await expectSameStep({ host: restored, device: whole }, queriesAt(seq, 5))
    await expectSameState(recovered, twins.device)
    await refused(engine.attendBatch([{ session: twins.host, layer: 0, ...rows(seq, 0, 1) }] as never), 'disposed')
  } finally {
    await engine.dispose()
    await want.dispose()
  }
  expect(opened.map((tier) => tier.bytes())).toEqual(opened.map(() => 0))
})

it('lets a process end, however it does, and memory go', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'shared-pages-'))
  try {
    const [entry, outfile] = [resolve(import.meta.dirname, 'shared-pages-process.ts'), join(folder, 'process.mjs')]
    await build({ entryPoints: [entry], outfile, bundle: true, minify: true, platform: 'node', format: 'esm' })
    const run = (...given: string[]) => promisify(execFile)(process.execPath, [outfile, ...given], { timeout: 50_000 })
    const [ends, exits, throws] = await Promise.allSettled([run('end', '16'), run('exit', '1'), run('throw', '1')])
    expect(ends).toMatchObject({ status: 'fulfilled', value: { stderr: '', stdout: expect.stringMatching(/^helped/) } })
    expect(exits).toMatchObject({ status: 'rejected', reason: { code: 5, signal: null, stderr: '' } })
    expect(throws).toMatchObject({
      status: 'rejected',
      reason: { code: 1, stderr: expect.stringContaining('a fault') },
    })
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
})

it('refuses what is no number of threads', async () => {
  for (const given of [{ threads: -1 }, { threads: 1.5 }, { threads: 65 }, { threads: '3' }, { leastRows: Number.NaN }])
    await refused(() => sharedPages(given as SharedPagesOptions), 'bad_config')
  expect(sharedPages({ threads: 0 })(PAGE)).toBeInstanceOf(MemoryPages)
  const tier = opener()()
  const error = await refused(() => tier.room(Number.MAX_SAFE_INTEGER), 'out_of_memory')
  expect(error.got).toContain(String(Number.MAX_SAFE_INTEGER))
})
