import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { afterEach, expect, test } from 'vitest'
import { nodeBody } from '../../adapters/node-body.ts'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

/** The head of a request of 10 bytes and `sent` of its body, as a server gets it. */
async function arriving(sent: string) {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  cleanups.push(() => new Promise((resolve) => server.close(resolve)))
  const request = new Promise<[IncomingMessage, ServerResponse]>((resolve) =>
    server.once('request', (incoming, outgoing) => resolve([incoming, outgoing])),
  )
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1')
  client.on('error', () => {})
  cleanups.push(() => client.destroy())
  client.write(`PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n${sent}`)
  const [incoming] = await request
  return { incoming, client }
}

/** What a source hands over. */
function gather() {
  const chunks: Uint8Array[] = []
  return { take: (chunk: Uint8Array) => void chunks.push(chunk), text: () => Buffer.concat(chunks).toString() }
}

const live = () => new AbortController().signal

test('the body comes as its chunks do', async () => {
  const { incoming, client } = await arriving('01234')
  const { take, text } = gather()
  const done = nodeBody({ incoming })?.(take, live())
  await expect.poll(text).toBe('01234')
  client.write('56789')
  await done
  expect(text()).toBe('0123456789')
})

test('a body that breaks off is no whole one', async () => {
  const { incoming, client } = await arriving('01234')
  const done = nodeBody({ incoming })?.(gather().take, live())
  client.destroy()
  await expect(done).rejects.toThrow()
})

test('who refuses a chunk, or has waited long enough, gets no other', async () => {
  for (const stop of ['refuse', 'abort'] as const) {
    const { incoming, client } = await arriving('01234')
    const abort = new AbortController()
    let chunks = 0
    const take = () => {
      chunks++
      if (stop === 'refuse') throw new Error('too much')
      abort.abort(new Error('too late'))
    }
    await expect(nodeBody({ incoming })?.(take, abort.signal)).rejects.toThrow(/too (much|late)/)
    client.write('56789')
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect(chunks).toBe(1)
    expect(incoming.isPaused()).toBe(true)
  }
})

test('a body that others read, or that is gone, is left to the request', async () => {
  expect(nodeBody({})).toBeUndefined()
  const { incoming } = await arriving('01234')
  incoming.once('data', () => {})
  await expect.poll(() => nodeBody({ incoming })).toBeUndefined()
  const gone = await arriving('01234')
  gone.incoming.destroy()
  expect(nodeBody({ incoming: gone.incoming })).toBeUndefined()
})
