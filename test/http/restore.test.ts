import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, it } from 'vitest'
import { sequence } from '../support/sessions.ts'
import { local } from './served.ts'
import { expectProblem, SMALL } from './support.ts'

setFlagsFromString('--expose-gc')
const gc = runInNewContext('gc') as () => void

/** A body that says its header has 4 MiB and gives so many bytes of it, one at a time, then ends or stalls. */
function dribble(bytes: number, given: (chunk: Uint8Array) => Promise<void> | void = () => {}) {
  const said = new DataView(new ArrayBuffer(8))
  said.setBigUint64(0, BigInt(2 ** 22), true)
  let [left, cancelled] = [bytes, false]
  const stream = new ReadableStream<Uint8Array>(
    {
      start: (controller) => controller.enqueue(new Uint8Array(said.buffer)),
      async pull(controller) {
        if (left-- === 0) return controller.close()
        const chunk = new Uint8Array([32])
        await given(chunk)
        controller.enqueue(chunk)
      },
      cancel: () => {
        cancelled = true
      },
    },
    { highWaterMark: 0 },
  )
  return { stream, isCancelled: () => cancelled }
}

it('the header of a snapshot is held as one buffer, whatever its chunks', async () => {
  const { app, alice } = await local()
  const chunks: WeakRef<Uint8Array>[] = []
  let alive = 0
  const { stream } = dribble(20_000, async (chunk) => {
    chunks.push(new WeakRef(chunk))
    if (chunks.length % 5000 !== 0) return
    // What a WeakRef was made of is held until the turn of the event loop ends.
    await new Promise((resolve) => setImmediate(resolve))
    gc()
    alive = chunks.filter((each) => each.deref()).length
  })
  await expectProblem(await alice.send('POST', '/v1/sessions:restore', stream), 'snapshot_corrupt')
  expect(chunks.length).toBe(20_000)
  expect(alive).toBeLessThan(100)
  await app.dispose()
})

it('the header of a snapshot counts as a body that is held', async () => {
  const { app, alice } = await local({ limits: { buffered: 5000 }, metricsToken: 'token-of-alice' })
  const { stream, isCancelled } = dribble(20_000)
  await expectProblem(await alice.send('POST', '/v1/sessions:restore', stream), 'too_many')
  expect(isCancelled()).toBe(true)
  expect(await (await alice.send('GET', '/metrics')).text()).toMatch(/^pariskv_buffered_bytes 0$/m)
  await app.dispose()
})

it('a snapshot that is refused behind its header is read no further', async () => {
  const roomy = await local()
  const id = await roomy.alice.open()
  await roomy.alice.append(id, sequence(3, 200), 0, 200)
  const snapshot = await (await roomy.alice.send('GET', `/v1/sessions/${id}/snapshot`)).arrayBuffer()
  await roomy.app.dispose()
  const { app, alice } = await local({ limits: { sessions: 1 } })
  await alice.json('POST', '/v1/sessions', JSON.stringify(SMALL))
  let [at, cancelled] = [0, false]
  const stream = new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        if (at >= snapshot.byteLength) return controller.close()
        controller.enqueue(new Uint8Array(snapshot.slice(at, at + 4096)))
        at += 4096
      },
      cancel: () => {
        cancelled = true
      },
    },
    { highWaterMark: 0 },
  )
  await expectProblem(await alice.send('POST', '/v1/sessions:restore', stream), 'too_many')
  expect(cancelled).toBe(true)
  expect(at).toBeLessThan(snapshot.byteLength)
  await app.dispose()
})
