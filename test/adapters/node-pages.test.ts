import { mkdtemp, open, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { filePages } from '../../adapters/node-pages.ts'
import { Engine } from '../../sdk/engine.ts'
import { backendCases } from '../support/backends.ts'
import { expectOffloaded, expectSameStep, openTwins } from '../support/offload.ts'
import {
  expectSameState,
  feed,
  options,
  queriesAt,
  refused,
  refusedUnchanged,
  rows,
  sequence,
} from '../support/sessions.ts'

const seq = sequence(341, 400)
let folder: string
let engine: Engine

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'pages-'))
  engine = new Engine(await backendCases[0].open(), [], filePages(folder))
})

afterEach(async () => {
  await engine.dispose()
  await rm(folder, { recursive: true, force: true })
})

async function expectFiles(count: number): Promise<void> {
  expect((await readdir(folder)).length).toBe(count)
}

it('serves the same bytes from a file as from the device, step by step', async () => {
  const twins = await openTwins(engine, { layers: 2, store: 'bf16' })
  for (const session of [twins.host, twins.device])
    for (const layer of [0, 1]) await feed(session, seq, 0, 200, 70, layer)
  for (let t = 200; t < 260; t++)
    for (const layer of [0, 1]) {
      for (const session of [twins.host, twins.device]) await feed(session, seq, t, t + 1, 1, layer)
      await expectSameStep(twins, queriesAt(seq, t), layer)
    }
  expectOffloaded(twins.host)
  await expectFiles(1)
  await expectSameState(twins.host, twins.device)
  expect(await twins.host.check()).toMatchObject({ ok: true })
  await twins.host.dispose()
  await expectFiles(0)
})

it('truncates, forks and restores there, and forks share nothing', async () => {
  const twins = await openTwins(engine, {}, { normWeighted: true })
  for (const session of [twins.host, twins.device]) await feed(session, seq, 0, 300, 70)
  const fork = await twins.host.fork()
  for (const session of [twins.host, twins.device]) {
    await session.truncate(100)
    await feed(session, sequence(342, 400), 100, 220, 33)
  }
  await expectSameStep(twins, queriesAt(seq, 220))
  await expectSameState(twins.host, twins.device)
  const want = await engine.createSession(options({}, { normWeighted: true, offload: 'never' }))
  await feed(want, seq, 0, 300, 70)
  await expectSameState(fork, want)
  const restored = await engine.restore(fork.snapshot(), { placement: { offload: 'always', hotRows: 12 } })
  await expectSameState(restored, want)
  await expectFiles(3)
  await engine.dispose()
  await expectFiles(0)
})

it('refuses what a folder cannot take, and says so', async () => {
  const nowhere = new Engine(await backendCases[0].open(), [], filePages(join(folder, 'not there')))
  const session = await nowhere.createSession(options({}, { offload: 'always' }))
  const error = await refusedUnchanged(session, () => session.append(0, rows(seq, 0, 9)), 'internal')
  expect(error.got).toContain('ENOENT')
  await refused(session.append(0, rows(seq, 0, 9)), 'internal')
  await nowhere.dispose()
})

it('tells a full disk from one that fails, and does not wait for ever', async () => {
  const path = join(folder, 'any')
  await writeFile(path, '')
  const any = await open(path)
  const handle = Object.getPrototypeOf(any)
  await any.close()
  const session = await engine.createSession(options({}, { offload: 'always', hotRows: 12 }))
  await session.append(0, rows(seq, 0, 60))
  const write = vi.spyOn(handle, 'write')
  try {
    for (const [fault, code] of [
      ['ENOSPC', 'out_of_memory'],
      ['EDQUOT', 'out_of_memory'],
      ['EFBIG', 'out_of_memory'],
      ['EIO', 'internal'],
    ] as const) {
      write.mockRejectedValueOnce(Object.assign(new Error(fault), { code: fault }))
      await refusedUnchanged(session, () => session.append(0, rows(seq, 60, 61)), code)
    }
    write.mockResolvedValueOnce({ bytesWritten: 0 })
    await refusedUnchanged(session, () => session.append(0, rows(seq, 60, 61)), 'internal')
  } finally {
    write.mockRestore()
  }
  await session.append(0, rows(seq, 60, 61))
  const want = await engine.createSession(options({}, { offload: 'never' }))
  await want.append(0, rows(seq, 0, 61))
  await expectSameState(session, want)
})
