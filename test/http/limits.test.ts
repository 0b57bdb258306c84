import { expect, it } from 'vitest'
import { buildFrame } from '../../sdk/http/tensors.ts'
import { sequence } from '../support/sessions.ts'
import { journalWith, local } from './served.ts'
import { expectProblem, queryTensor, rowTensors, SMALL } from './support.ts'

const seq = sequence(3, 100)
const row = (t: number) => buildFrame(rowTensors(seq, t, t + 1))
const hold = () => {
  let release = () => {}
  const held = new Promise<void>((resolve) => {
    release = resolve
  })
  return { held, release }
}

it('sessions of a tenant and in all are bounded', async () => {
  const { app, alice, bob } = await local({ limits: { sessions: 3, sessionsPerTenant: 2 } })
  const ids = [await alice.open(), await alice.open()]
  const body = JSON.stringify(SMALL)
  const refused = await alice.send('POST', '/v1/sessions', body)
  expect(refused.headers.get('retry-after')).toMatch(/^\d+$/)
  await expectProblem(refused, 'too_many')
  await expectProblem(await alice.send('POST', `/v1/sessions/${ids[0]}/fork`), 'too_many')
  await bob.open()
  await expectProblem(await bob.send('POST', '/v1/sessions', body), 'too_many')
  await alice.send('DELETE', `/v1/sessions/${ids[0]}`)
  await alice.open()
  await app.dispose()
})

it('bytes of a tenant and in all are bounded, before anything is allocated', async () => {
  const { app, alice } = await local()
  const { bytes } = (await alice.json('POST', '/v1/sessions', JSON.stringify(SMALL))) as { bytes: number }
  await app.dispose()
  const small = await local({ limits: { bytes: 3 * bytes, bytesPerTenant: 2 * bytes } })
  await small.alice.open()
  const id = await small.alice.open()
  await expectProblem(await small.alice.send('POST', '/v1/sessions', JSON.stringify(SMALL)), 'out_of_memory')
  await small.alice.append(id, seq, 0, 30)
  const snapshot = await (await small.alice.send('GET', `/v1/sessions/${id}/snapshot`)).arrayBuffer()
  const refused = await small.alice.send('POST', '/v1/sessions:restore', snapshot)
  expect(refused.headers.get('retry-after')).toMatch(/^\d+$/)
  await expectProblem(refused, 'out_of_memory')
  await small.bob.json('POST', '/v1/sessions:restore', snapshot)
  await expectProblem(await small.bob.send('POST', '/v1/sessions:restore', snapshot), 'out_of_memory')
  await small.alice.send('DELETE', `/v1/sessions/${id}`)
  await small.alice.json('POST', '/v1/sessions:restore', snapshot)
  await small.app.dispose()
})

it('a body is bounded whatever it says of its length', async () => {
  const { app, alice } = await local({ limits: { body: 2000 } })
  const id = await alice.open()
  const path = `/v1/sessions/${id}/layers/0/kv?offset=0`
  const big = buildFrame(rowTensors(seq, 0, 20))
  await expectProblem(await alice.send('PUT', path, big), 'too_large')
  await expectProblem(await alice.send('PUT', path, big, { 'content-length': '100' }), 'too_large')
  await expectProblem(await alice.send('PUT', path, row(0), { 'content-length': '2001' }), 'too_large')
  await expectProblem(await alice.send('PUT', path, row(0), { 'content-length': '1e2' }), 'bad_body')
  await alice.append(id, seq, 0, 1)
  await app.dispose()
})

it('bytes of bodies held at once are bounded, and given back', async () => {
  const { app, alice } = await local({ limits: { buffered: 3000 } })
  const id = await alice.open()
  await expectProblem(
    await alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=0`, buildFrame(rowTensors(seq, 0, 20))),
    'too_many',
  )
  for (let t = 0; t < 20; t++) await alice.append(id, seq, t, t + 1)
  await app.dispose()
})

it('requests on a session and in all are bounded while they wait', async () => {
  const { held, release } = hold()
  const journal = journalWith({ appended: () => held })
  const { app, alice } = await local({ journal, limits: { queue: 5, queuePerSession: 3 } })
  const [one, two] = [await alice.open(), await alice.open()]
  const put = (id: string, t: number) => alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=${t}`, row(t))
  const waiting = [0, 1, 2].map((t) => put(one, t))
  await new Promise((resolve) => setTimeout(resolve, 20))
  const refused = await put(one, 3)
  expect(refused.headers.get('retry-after')).toBe('1')
  expect((await expectProblem(refused, 'too_many')).where).toBe('the session')
  waiting.push(put(two, 0), put(two, 1))
  await new Promise((resolve) => setTimeout(resolve, 20))
  expect((await expectProblem(await put(two, 2), 'too_many')).where).toBe('the server')
  release()
  expect((await Promise.all(waiting)).map(({ status }) => status)).toEqual([200, 200, 200, 200, 200])
  expect((await put(one, 3)).status).toBe(200)
  await app.dispose()
})

it('a request that waits beyond its deadline is refused and does nothing', async () => {
  const { held, release } = hold()
  const journal = journalWith({ appended: () => held })
  const { app, alice } = await local({ journal, limits: { deadline: 60 } })
  const id = await alice.open()
  const first = alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=0`, row(0))
  await new Promise((resolve) => setTimeout(resolve, 10))
  const second = await alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=1`, row(1))
  expect(second.headers.get('retry-after')).toBe('1')
  await expectProblem(second, 'deadline')
  release()
  // What had begun is answered as it ended.
  expect((await first).status).toBe(200)
  expect(await alice.lengths(id)).toEqual([1, 0])
  await app.dispose()
})

it('a body that never ends is given up at the deadline', async () => {
  const { app, alice } = await local({ limits: { deadline: 60 } })
  const id = await alice.open()
  let cancelled = false
  const stalled = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(row(0).subarray(0, 50)),
    cancel: () => {
      cancelled = true
    },
  })
  await expectProblem(await alice.send('PUT', `/v1/sessions/${id}/layers/0/kv?offset=0`, stalled), 'deadline')
  expect(cancelled).toBe(true)
  await alice.append(id, seq, 0, 1)
  await app.dispose()
})

it('a prefill stops at the deadline and is taken back', async () => {
  const { app, alice } = await local({ limits: { deadline: 200 } })
  const big = sequence(5, 6000)
  const id = await alice.open({ capacity: 8192 })
  const queries = { name: 'queries', shape: [4, 6000, 16], data: big.queries }
  const body = buildFrame([...rowTensors(big, 0, 6000), queries])
  await expectProblem(await alice.send('POST', `/v1/sessions/${id}/layers/0/prefill`, body), 'deadline')
  expect(await alice.lengths(id)).toEqual([0, 0])
  await app.dispose()
})

it('idle sessions expire, used ones do not', async () => {
  const { app, alice } = await local({ sweepEvery: 20 })
  const [idle, used] = [await alice.open({ ttl: 1 }), await alice.open({ ttl: 1 })]
  for (let i = 0; i < 16; i++) {
    await new Promise((resolve) => setTimeout(resolve, 100))
    await alice.frame(used, '0/attend', [queryTensor(seq, 0)])
  }
  await expectProblem(await alice.send('GET', `/v1/sessions/${idle}`), 'not_found')
  expect(await alice.lengths(used)).toEqual([0, 0])
  await app.dispose()
})
