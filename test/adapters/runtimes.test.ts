import { once } from 'node:events'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { buildFrame } from '../../sdk/http/tensors.ts'
import { httpSuite } from '../http/suite.ts'
import { Caller, queryTensor, rowTensors } from '../http/support.ts'
import { sequence } from '../support/sessions.ts'
import { openServed, type RuntimeCase, runtimeCases, startServer } from './runtimes.ts'

for (const runtime of runtimeCases) {
  const { name, program } = runtime
  if (program === undefined) {
    const reason = `${name} is not installed: npm ci --prefix test/adapters`
    console.log(`http over ${name}: skipped, ${reason}`)
    describe.skip(`http over ${name} (skipped: ${reason})`, () => {})
    continue
  }
  httpSuite(name, () => openServed(runtime as RuntimeCase))

  describe(`a server on ${name}`, () => {
    let server: Awaited<ReturnType<typeof startServer>>
    beforeAll(async () => {
      server = await startServer(runtime as RuntimeCase)
    })
    afterAll(() => server?.kill())

    test('without tokens refuses pages of others', async () => {
      const open = await startServer(runtime as RuntimeCase, new Map())
      const statusOf = async (headers: HeadersInit) => (await fetch(`${open.url}/v1/info`, { headers })).status
      expect(await statusOf({})).toBe(200)
      expect(await statusOf({ origin: open.url })).toBe(200)
      expect(await statusOf({ origin: 'https://page.example' })).toBe(401)
      await open.close()
    })

    test('steps over a WebSocket, and closes it and itself at SIGTERM', async () => {
      const seq = sequence(3, 8)
      const id = await new Caller({
        fetch: (path, init) => fetch(server.url + path, init),
        close: async () => {},
      }).open()
      const token = Buffer.from('token-of-alice').toString('base64url')
      const protocols = ['pariskv', `pariskv.token.${token}`]
      const socket = new WebSocket(`${server.url.replace('http', 'ws')}/v1/sessions/${id}/socket`, protocols)
      socket.binaryType = 'arraybuffer'
      await once(socket as never, 'open')
      expect(socket.protocol).toBe('pariskv')
      for (let t = 0; t < 4; t++) {
        const metadata = { op: 'step', layer: '0', offset: String(t), id: `call ${t}` }
        socket.send(buildFrame([...rowTensors(seq, t, t + 1), queryTensor(seq, t)], metadata))
        const [{ data }] = (await once(socket as never, 'message')) as [MessageEvent<ArrayBuffer>]
        const text = new TextDecoder().decode(data)
        expect(text).toContain('"status":"200"')
        expect(text).toContain(`"id":"call ${t}"`)
      }
      const closed = once(socket as never, 'close')
      const ended = await server.close()
      expect(ended).toMatchObject({ status: 0, signal: null })
      expect(ended.lines.at(-1)).toBe('closed')
      await closed
    })
  })
}
