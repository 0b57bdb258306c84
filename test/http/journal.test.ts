import { describe, expect, it } from 'vitest'
import type { Journal, SessionRecord } from '../../sdk/http/app.ts'
import { buildFrame } from '../../sdk/http/tensors.ts'
import type { TensorInput } from '../../sdk/input.ts'
import { expectSame } from '../support/repeat.ts'
import { bytesOf, sequence, streamOf } from '../support/sessions.ts'
import { local, openEngine } from './served.ts'
import { expectProblem, queryTensor, rowTensors } from './support.ts'

type Line =
  | { type: 'created'; record: SessionRecord }
  | { type: 'appended'; layer: number; offset: number; rows: { keys: TensorInput; values: TensorInput } }
  | { type: 'truncated'; length: number }
  | { type: 'restored'; snapshot: Uint8Array }

/** A store that keeps everything, and fails when told to. */
class Store implements Journal {
  readonly lines = new Map<string, Line[]>()
  failing = false

  async created(id: string, record: SessionRecord) {
    this.check()
    this.lines.set(id, [{ type: 'created', record }])
  }
  async appended(
    id: string,
    layer: number,
    offset: number,
    _: number,
    given: { keys: TensorInput; values: TensorInput },
  ) {
    this.check()
    this.lines.get(id)?.push({ type: 'appended', layer, offset, rows: structuredClone(given) })
  }
  async truncated(id: string, length: number) {
    this.check()
    this.lines.get(id)?.push({ type: 'truncated', length })
  }
  async removed(id: string) {
    this.check()
    this.lines.delete(id)
  }
  async restored(id: string, record: SessionRecord, snapshot: ReadableStream<Uint8Array>) {
    this.check()
    this.lines.set(id, [
      { type: 'created', record },
      { type: 'restored', snapshot: await bytesOf(snapshot) },
    ])
  }
  private check() {
    if (this.failing) throw new Error('the disk is full')
  }
}

describe('a host that stores sessions', () => {
  const seq = sequence(3, 200)

  it('has every acknowledged call, so that another app goes on to the bit', async () => {
    const journal = new Store()
    const { app, alice } = await local({ journal })
    const id = await alice.open()
    await alice.append(id, seq, 0, 100)
    await alice.frame(id, '0/step', [...rowTensors(seq, 100, 101), queryTensor(seq, 100)])
    await alice.json('POST', `/v1/sessions/${id}/truncate?length=90`)
    await alice.append(id, seq, 90, 120)
    const before = await (await alice.send('GET', `/v1/sessions/${id}/snapshot`)).arrayBuffer()
    await app.dispose()
    const lines = journal.lines.get(id)!
    expect(lines.map(({ type }) => type)).toEqual(['created', 'appended', 'appended', 'truncated', 'appended'])

    const engine = await openEngine()
    const again = await local({ engine, journal })
    const { record } = lines[0] as { record: SessionRecord }
    const session = await engine.createSession(record.options)
    for (const line of lines)
      if (line.type === 'appended') await session.append(line.layer, line.rows)
      else if (line.type === 'truncated') await session.truncate(line.length)
    await again.app.adopt(id, { tenant: record.tenant, session, ttl: record.ttl })
    const after = await (await again.alice.send('GET', `/v1/sessions/${id}/snapshot`)).arrayBuffer()
    expectSame(new Uint8Array(after), new Uint8Array(before), 'snapshot')
    await expectProblem(await again.bob.send('GET', `/v1/sessions/${id}`), 'not_found')
    await again.app.dispose()
  })

  it('takes back what it could not store', async () => {
    const journal = new Store()
    const { app, alice } = await local({ journal })
    journal.failing = true
    await expectProblem(
      await alice.send(
        'POST',
        '/v1/sessions',
        JSON.stringify({ layers: 1, queryHeads: 4, kvHeads: 2, headDim: 16, capacity: 64 }),
      ),
      'not_stored',
    )
    journal.failing = false
    const id = await alice.open()
    await alice.append(id, seq, 0, 60)
    const before = await (await alice.send('GET', `/v1/sessions/${id}/snapshot`)).arrayBuffer()
    journal.failing = true
    const at = `/v1/sessions/${id}`
    const queries = { name: 'queries', shape: [4, 1, 16], data: seq.queries.slice(0, 64) }
    const kv = rowTensors(seq, 60, 61)
    for (const [method, path, tensors] of [
      ['PUT', '/layers/0/kv?offset=60', kv],
      ['POST', '/layers/0/step?offset=60', [...kv, queryTensor(seq, 60)]],
      ['POST', '/layers/0/prefill?offset=60', [...kv, queries]],
    ] as const)
      await expectProblem(
        await alice.send(method, at + path, buildFrame(tensors), { 'idempotency-key': path.slice(9, 12) }),
        'not_stored',
      )
    await expectProblem(await alice.send('POST', `${at}/truncate?length=5`), 'not_stored')
    await expectProblem(await alice.send('POST', `${at}/fork`), 'not_stored')
    await expectProblem(await alice.send('DELETE', at), 'not_stored')
    journal.failing = false
    const after = await (await alice.send('GET', `${at}/snapshot`)).arrayBuffer()
    expectSame(new Uint8Array(after), new Uint8Array(before), 'snapshot')
    // A refusal is not kept under its key.
    expect(
      (await alice.send('PUT', `${at}/layers/0/kv?offset=60`, buildFrame(kv), { 'idempotency-key': '0/k' })).status,
    ).toBe(200)
    expect((await alice.send('DELETE', at)).status).toBe(204)
    expect(journal.lines.size).toBe(0)
    await app.dispose()
  })

  it('stores what a fork or a snapshot begins with', async () => {
    const journal = new Store()
    const { app, alice } = await local({ journal })
    const id = await alice.open()
    await alice.append(id, seq, 0, 60)
    const copy = String((await alice.json('POST', `/v1/sessions/${id}/fork`)).id)
    const [, restored] = journal.lines.get(copy)!
    const engine = await openEngine()
    const session = await engine.restore(streamOf((restored as { snapshot: Uint8Array }).snapshot))
    expect(session.length()).toBe(60)
    await engine.dispose()
    await app.dispose()
  })

  it('that cannot store a snapshot says so', async () => {
    const journal = new Store()
    Object.assign(journal, { restored: undefined })
    const { app, alice } = await local({ journal })
    const id = await alice.open()
    await expectProblem(await alice.send('POST', `/v1/sessions/${id}/fork`), 'not_supported')
    await expectProblem(await alice.send('POST', '/v1/sessions:restore', new Uint8Array(9)), 'not_supported')
    await app.dispose()
  })

  it('is told of what expired', async () => {
    const journal = new Store()
    const { app, alice } = await local({ journal, sweepEvery: 0 })
    const id = await alice.open({ ttl: 1 })
    await new Promise((resolve) => setTimeout(resolve, 1050))
    await expectProblem(await alice.send('GET', `/v1/sessions/${id}`), 'not_found')
    expect(journal.lines.has(id)).toBe(true)
    await app.sweep()
    expect(journal.lines.has(id)).toBe(false)
    await app.dispose()
  })
})
