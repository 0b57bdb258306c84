import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { mergePartials } from '../../sdk/attend/merge-partials.ts'
import { buildFrame, SAFETENSORS } from '../../sdk/http/tensors.ts'
import { exactAttention, upTo } from '../support/exact.ts'
import { expectNear, expectSame } from '../support/repeat.ts'
import { queriesAt, sequence, tokensOf } from '../support/sessions.ts'
import { badInputSuite } from './suite-bad.ts'
import { Caller, expectProblem, queryTensor, rowTensors, type Served } from './support.ts'

const floats = (frame: Awaited<ReturnType<Caller['frame']>>, name: string) =>
  frame.tensors.get(name)!.input as Float32Array

/**
 * What every served app does, seen from outside.
 * @param open starts one that knows the tokens of `support.ts`; closed after the suite
 */
export function httpSuite(name: string, open: () => Promise<Served>): void {
  describe(`http over ${name}`, () => {
    let served: Served
    let alice: Caller
    let bob: Caller
    const seq = sequence(7, 200)
    beforeAll(async () => {
      served = await open()
      alice = new Caller(served)
      bob = new Caller(served, 'token-of-bob')
    })
    afterAll(() => served?.close())

    it('opens, describes and deletes a session', async () => {
      const opened = await alice.json(
        'POST',
        '/v1/sessions',
        JSON.stringify({ layers: 1, queryHeads: 4, kvHeads: 2, headDim: 16, capacity: 64, ttl: 60 }),
      )
      expect(opened).toMatchObject({ ttl: 60, lengths: [0], config: { headDim: 16, capacity: 64 } })
      expect(opened.id).toMatch(/^[\w-]{22,}$/)
      expect(opened.epoch).toMatch(/./)
      const path = `/v1/sessions/${opened.id}`
      const session = await alice.json('GET', path)
      expect(session).toMatchObject({ id: opened.id, ttl: 60, lengths: [0], calls: { append: 0 } })
      expect((await alice.send('DELETE', path)).status).toBe(204)
      await expectProblem(await alice.send('GET', path), 'not_found')
      await expectProblem(await alice.send('DELETE', path), 'not_found')
    })

    it('appends, attends and retrieves', async () => {
      const id = await alice.open({ policy: { k: 8, sink: 4, local: 16, update: 8, denseBelow: 2000 } })
      expect(await alice.append(id, seq, 0, 150)).toEqual({ offset: 0, tokens: 150, length: 150 })
      expect(await alice.append(id, seq, 150, 151)).toEqual({ offset: 150, tokens: 1, length: 151 })
      const frame = await alice.frame(id, '0/attend', [queryTensor(seq, 150)])
      expect(frame.tensors.get('output')!.shape).toEqual([4, 16])
      expect(frame.metadata.get('length')).toBe('151')
      const want = exactAttention(seq, queriesAt(seq, 150), upTo(151))
      expectNear(floats(frame, 'output'), want.output, 5e-4, 'output')
      expectNear(floats(frame, 'lse'), want.lse, 1e-3, 'lse')
      const found = await alice.frame(id, '0/retrieve?k=5', [queryTensor(seq, 150)])
      expect(found.tensors.get('indices')!.shape).toEqual([2, 5])
      for (const i of found.tensors.get('indices')!.input as Uint32Array) expect(i >= 4 && i < 135).toBe(true)
      const scores = floats(found, 'scores')
      for (let i = 1; i < 5; i++) expect(scores[i - 1]).toBeGreaterThanOrEqual(scores[i])
      const empty = await alice.frame(id, '1/attend', [queryTensor(seq, 0)])
      expectSame(floats(empty, 'lse'), new Array(4).fill(Number.NEGATIVE_INFINITY), 'lse')
      expect(await alice.lengths(id)).toEqual([151, 0])
    })

    it('prefills exactly and causally', async () => {
      const id = await alice.open()
      const queries = { name: 'queries', shape: [4, 60, 16], data: tokensOf(seq.queries, 200, 16, 0, 60) }
      const frame = await alice.frame(id, '0/prefill', [...rowTensors(seq, 0, 60), queries])
      expect(frame.tensors.get('output')!.shape).toEqual([4, 60, 16])
      for (const t of [0, 17, 59]) {
        const want = exactAttention(seq, queriesAt(seq, t), upTo(t + 1))
        expectNear(tokensOf(floats(frame, 'output'), 60, 16, t, t + 1), want.output, 1e-3, `output ${t}`)
      }
      expect(await alice.lengths(id)).toEqual([60, 0])
    })

    it('steps as an append and an attend do, to the bit', async () => {
      const [one, two] = [await alice.open(), await alice.open()]
      for (const id of [one, two]) await alice.append(id, seq, 0, 90)
      for (let t = 90; t < 100; t++) {
        const step = await alice.frame(one, `0/step?offset=${t}`, [...rowTensors(seq, t, t + 1), queryTensor(seq, t)])
        await alice.append(two, seq, t, t + 1)
        const attend = await alice.frame(two, '0/attend', [queryTensor(seq, t)])
        expectSame(floats(step, 'output'), floats(attend, 'output'), `output ${t}`)
        expectSame(floats(step, 'lse'), floats(attend, 'lse'), `lse ${t}`)
      }
    })

    it('merges partial attention to ranges into the whole', async () => {
      const id = await alice.open()
      await alice.append(id, seq, 0, 150)
      const query = queryTensor(seq, 149)
      const partials = []
      for (const [from, to] of [
        [0, 3],
        [3, 100],
        [100, 100],
        [100, 150],
      ]) {
        const frame = await alice.frame(id, `0/partial?from=${from}&to=${to}`, [query])
        partials.push({ output: floats(frame, 'output'), lse: floats(frame, 'lse') })
      }
      const want = exactAttention(seq, queriesAt(seq, 149), upTo(150))
      const got = mergePartials(partials)
      expectNear(got.output, want.output, 5e-4, 'output')
      expectNear(got.lse, want.lse, 1e-3, 'lse')
      await expectProblem(
        await alice.send('POST', `/v1/sessions/${id}/layers/0/partial?from=5&to=151`, buildFrame([query])),
        'bad_length',
      )
    })

    it('truncates', async () => {
      const id = await alice.open()
      await alice.append(id, seq, 0, 50)
      await alice.append(id, seq, 0, 10, 1)
      expect(await alice.json('POST', `/v1/sessions/${id}/truncate?length=20`)).toEqual({ lengths: [20, 10] })
      await expectProblem(await alice.send('POST', `/v1/sessions/${id}/truncate?length=21`), 'bad_length')
      await alice.append(id, seq, 20, 30)
      expect(await alice.lengths(id)).toEqual([30, 10])
    })

    it('streams a snapshot and restores it', async () => {
      const id = await alice.open()
      await alice.append(id, seq, 0, 120)
      const snapshot = await alice.send('GET', `/v1/sessions/${id}/snapshot`)
      expect(snapshot.headers.get('content-type')).toBe(SAFETENSORS)
      const bytes = new Uint8Array(await snapshot.arrayBuffer())
      const copy = await alice.json('POST', '/v1/sessions:restore?ttl=90', bytes)
      expect(copy).toMatchObject({ lengths: [120, 0], ttl: 90 })
      const results = []
      for (const each of [id, String(copy.id)])
        results.push(floats(await alice.frame(each, '0/attend', [queryTensor(seq, 119)]), 'output'))
      expectSame(results[1], results[0], 'output')
      const again = new Uint8Array(await (await alice.send('GET', `/v1/sessions/${copy.id}/snapshot`)).arrayBuffer())
      expectSame(again, bytes, 'snapshot')
      bytes[bytes.length - 1] ^= 1
      await expectProblem(await alice.send('POST', '/v1/sessions:restore', bytes), 'snapshot_corrupt')
      await expectProblem(await alice.send('POST', '/v1/sessions:restore', bytes.slice(0, 100)), 'snapshot_corrupt')
    })

    it('forks', async () => {
      const id = await alice.open()
      await alice.append(id, seq, 0, 60)
      const copy = await alice.json('POST', `/v1/sessions/${id}/fork`)
      expect(copy.id).not.toBe(id)
      await alice.append(String(copy.id), seq, 60, 80)
      expect(await alice.lengths(id)).toEqual([60, 0])
      expect(await alice.lengths(String(copy.id))).toEqual([80, 0])
    })

    it('answers a retry under one key once', async () => {
      const id = await alice.open()
      const path = `/v1/sessions/${id}/layers/0/kv?offset=0`
      const put = (from: number, to: number, key: string) =>
        alice.send('PUT', path, buildFrame(rowTensors(seq, from, to)), { 'idempotency-key': key })
      const first = await put(0, 5, 'a')
      const again = await put(0, 5, 'a')
      expect([first.status, again.status]).toEqual([200, 200])
      expect(await again.json()).toEqual(await first.json())
      expect(again.headers.get('idempotent-replayed')).toBe('true')
      expect(await alice.lengths(id)).toEqual([5, 0])
      await expectProblem(await put(5, 10, 'a'), 'idempotency_mismatch')
      await expectProblem(await put(0, 5, 'b'), 'offset_mismatch')
      await expectProblem(await put(0, 5, 'no spaces'), 'bad_parameter')
      const both = await Promise.all(
        [0, 1].map(() =>
          alice.send('PUT', `/v1/sessions/${id}/layers/1/kv?offset=0`, buildFrame(rowTensors(seq, 0, 7)), {
            'idempotency-key': 'c',
          }),
        ),
      )
      expect(both.map(({ status }) => status)).toEqual([200, 200])
      expect(await alice.lengths(id)).toEqual([5, 7])
    })

    it('keeps appends in order', async () => {
      const id = await alice.open()
      await alice.append(id, seq, 0, 10)
      for (const offset of [0, 9, 11, 500]) {
        const path = `/v1/sessions/${id}/layers/0/kv?offset=${offset}`
        const problem = await expectProblem(
          await alice.send('PUT', path, buildFrame(rowTensors(seq, 10, 12))),
          'offset_mismatch',
        )
        expect(problem.length).toBe(10)
      }
      expect(await alice.lengths(id)).toEqual([10, 0])
      await alice.append(id, seq, 10, 12)
    })

    it('is linearizable: 64 appends and attends at once', async () => {
      const id = await alice.open()
      const appends = Array.from({ length: 32 }, (_, t) => async () => {
        for (;;) {
          const path = `/v1/sessions/${id}/layers/0/kv?offset=${t}`
          const response = await alice.send('PUT', path, buildFrame(rowTensors(seq, t, t + 1)))
          const body = (await response.json()) as { length: number }
          if (response.status === 200) return body.length
          expect(response.status).toBe(409)
          // Refused for its turn: the length told is one that the layer had.
          expect(body.length).toBeLessThan(t)
          await new Promise((resolve) => setTimeout(resolve, 1))
        }
      })
      const seen: { length: number; lse: Float32Array }[] = []
      const attends = Array.from({ length: 32 }, () => async () => {
        const frame = await alice.frame(id, '0/partial?from=0&to=0', [queryTensor(seq, 199)])
        const length = Number(frame.metadata.get('length'))
        const exact = await alice.frame(id, `0/partial?from=0&to=${length}`, [queryTensor(seq, 199)])
        seen.push({ length, lse: floats(exact, 'lse') })
        return length
      })
      const calls = appends.flatMap((append, i) => [append, attends[i]])
      const lengths = await Promise.all(calls.map((call) => call()))
      // Each append was done once, in its place.
      expect(lengths.filter((_, i) => i % 2 === 0)).toEqual(upTo(33).slice(1))
      for (const { length, lse } of seen)
        if (length > 0)
          expectNear(lse, exactAttention(seq, queriesAt(seq, 199), upTo(length)).lse, 1e-3, `lse of ${length}`)
      expect(await alice.lengths(id)).toEqual([32, 0])
    })

    it('tells nobody about what is not theirs', async () => {
      const id = await alice.open()
      const unknown = 'A'.repeat(22)
      const bodies = new Set<string>()
      for (const [caller, which] of [
        [bob, id],
        [bob, unknown],
        [alice, unknown],
        [alice, '%0d%0aSet-Cookie:x'],
        [alice, '..%2f..'],
      ] as const)
        for (const [method, path, body] of [
          ['GET', '', undefined],
          ['DELETE', '', undefined],
          ['GET', '/snapshot', undefined],
          ['POST', '/fork', undefined],
          ['POST', '/truncate?length=0', undefined],
          ['PUT', '/layers/0/kv?offset=0', buildFrame(rowTensors(seq, 0, 1))],
          ['POST', '/layers/0/attend', buildFrame([queryTensor(seq, 0)])],
        ] as const) {
          const response = await caller.send(method, `/v1/sessions/${which}${path}`, body)
          expect(response.status, `${method} ${path}`).toBe(404)
          bodies.add(await response.text())
        }
      expect([...bodies]).toHaveLength(1)
      expect(await alice.lengths(id)).toEqual([0, 0])
    })

    it('wants a token everywhere but at the probes and the page that asks for one', async () => {
      for (const token of [null, '', 'token-of-alic', 'token-of-alicf', 'token-of-alice2'])
        for (const path of ['/v1/info', '/openapi.json', '/v1/sessions/x', '/v1/sessions/x/snapshot', '/v1/nothing'])
          await expectProblem(await new Caller(served, token).send('GET', path), 'unauthorized')
      const nobody = new Caller(served, null)
      expect((await nobody.send('GET', '/v2/health/live')).status).toBe(200)
      expect((await nobody.send('GET', '/v2/health/ready')).status).toBe(200)
      expect((await nobody.send('GET', '/ping')).status).toBe(200)
      const page = await nobody.send('GET', '/docs')
      expect([page.status, page.headers.get('content-type')]).toEqual([200, expect.stringContaining('text/html')])
    })

    it('describes itself', async () => {
      const info = await alice.json('GET', '/v1/info')
      expect(info).toMatchObject({ state: 'ready', limits: { body: expect.any(Number) } })
      const doc = (await alice.json('GET', '/openapi.json')) as { openapi: string; paths: Record<string, unknown> }
      expect(doc.openapi).toBe('3.1.0')
      expect(Object.keys(doc.paths).length).toBeGreaterThan(12)
      const page = await alice.send('GET', '/docs')
      expect(page.headers.get('content-type')).toContain('text/html')
      expect(await page.text()).not.toMatch(/https?:\/\//)
    })

    badInputSuite(() => alice)
  })
}
