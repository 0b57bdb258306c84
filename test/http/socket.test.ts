import type { Context } from 'hono'
import type { WSContext, WSEvents } from 'hono/ws'
import { expect, it } from 'vitest'
import type { AppOptions } from '../../sdk/http/app.ts'
import { createClient } from '../../sdk/http/client.ts'
import { buildFrame, type OutTensor, parseAnswer } from '../../sdk/http/tensors.ts'
import { expectSame } from '../support/repeat.ts'
import { queriesAt, rows, sequence } from '../support/sessions.ts'
import { local } from './served.ts'
import { socketPairs } from './socket-pair.ts'
import { queryTensor, rowTensors, SMALL } from './support.ts'

const seq = sequence(3, 120)

async function open(limits = {}, over: Partial<AppOptions> = {}) {
  const pairs = socketPairs()
  const host = await local({ upgradeWebSocket: pairs.upgradeWebSocket, limits, ...over })
  const client = createClient({
    url: 'http://host',
    token: 'token-of-alice',
    fetch: (request) => host.app.request(request),
    webSocket: (url, protocols) => pairs.connect(host.app, url, protocols),
  })
  /** A bare socket, and what it is answered: metadata and tensors' names, in order. */
  const bare = async (id: string) => {
    const protocols = ['pariskv', `pariskv.token.${btoa('token-of-alice').replaceAll('=', '')}`]
    const socket = pairs.connect(host.app, `http://host/v1/sessions/${id}/socket`, protocols)
    const answers: Record<string, string>[] = []
    socket.addEventListener('message', ({ data }) => {
      const { metadata, tensors } = parseAnswer(new Uint8Array(data as ArrayBuffer))
      answers.push({ ...Object.fromEntries(metadata), tensors: [...tensors.keys()].join() })
    })
    await new Promise((resolve) => socket.addEventListener('open', resolve))
    const until = async (count: number) => {
      while (answers.length < count) await new Promise((resolve) => setTimeout(resolve, 1))
      return answers
    }
    return { socket, answers, until }
  }
  return { ...host, client, bare, pairs }
}

const frame = (metadata: Record<string, string>, tensors: OutTensor[] = []) => buildFrame(tensors, metadata)

it('steps a token through its layers, equal to HTTP to the bit', async () => {
  const { app, client } = await open()
  const [one, two] = [await client.createSession(SMALL), await client.createSession(SMALL)]
  for (const session of [one, two]) for (const layer of [0, 1]) await session.append(layer, rows(seq, 0, 90))
  const socket = await one.socket()
  for (let t = 90; t < 100; t++) {
    const input = { ...rows(seq, t, t + 1), queries: queriesAt(seq, t) }
    const over = await Promise.all([0, 1].map((layer) => socket.step(layer, input)))
    for (const layer of [0, 1]) {
      const want = await two.step(layer, input)
      expectSame(over[layer].output, want.output, `output ${t}`)
      expectSame(over[layer].lse, want.lse, `lse ${t}`)
    }
  }
  expect([one.length(0), one.length(1)]).toEqual([100, 100])
  await socket.append(0, rows(seq, 100, 103))
  expect((await socket.attend(0, { queries: queriesAt(seq, 103) })).lse.length).toBe(4)
  // Sent without waiting: the offsets follow one another.
  const steps = [103, 104, 105].map((t) => socket.step(0, { ...rows(seq, t, t + 1), queries: queriesAt(seq, t) }))
  await Promise.all(steps)
  expect(one.length(0)).toBe(106)
  socket.close()
  await expect(socket.attend(0, { queries: queriesAt(seq, 0) })).rejects.toMatchObject({ code: 'backend_unavailable' })
  expect((await one.stats()).lengths).toEqual([106, 100])
  await app.dispose()
})

it('answers in order, refusals too, and echoes ids', async () => {
  const { app, alice, bare } = await open()
  const id = await alice.open()
  const { socket, until } = await bare(id)
  const messages: (Uint8Array<ArrayBuffer> | string)[] = [
    frame({ op: 'append', layer: '0', offset: '0', id: 'a' }, rowTensors(seq, 0, 40)),
    frame({ op: 'attend', layer: '0', id: 'b' }, [queryTensor(seq, 39)]),
    frame({ op: 'append', layer: '0', offset: '7', id: 'c' }, rowTensors(seq, 40, 41)),
    frame({ op: 'append', layer: '5', offset: '0' }, rowTensors(seq, 40, 41)),
    frame({ op: 'append', layer: '-1', offset: '0' }, rowTensors(seq, 40, 41)),
    frame({ op: 'toString', layer: '0' }),
    'text',
    new Uint8Array(5),
    frame({ op: 'retrieve', layer: '0', k: '3', id: 'd' }, [queryTensor(seq, 39)]),
    frame({ op: 'partial', layer: '0', from: '0', to: '9' }, [queryTensor(seq, 39)]),
    frame({ op: 'truncate', length: '10' }),
    frame({ op: 'append', layer: '0', offset: '10' }, rowTensors(seq, 10, 12)),
  ]
  for (const message of messages) socket.send(message)
  const answers = await until(messages.length)
  expect(answers.map(({ status }) => status)).toEqual('200 200 409 400 400 400 400 400 200 200 200 200'.split(' '))
  expect(answers.map((answer) => answer.code)).toEqual(
    [
      undefined,
      undefined,
      'offset_mismatch',
      'bad_layer',
      'bad_parameter',
      'bad_parameter',
      'bad_body',
      'bad_body',
    ].concat(new Array(4).fill(undefined)),
  )
  expect(answers.map((answer) => answer.id ?? '')).toEqual(['a', 'b', 'c', '', '', '', '', '', 'd', '', '', ''])
  expect(answers[1].tensors).toBe('output,lse')
  expect(answers[2].length).toBe('40')
  expect(answers[8].tensors).toBe('indices,scores')
  expect(answers[11].length).toBe('12')
  expect(await alice.lengths(id)).toEqual([12, 0])
  await app.dispose()
})

it('bounds what waits for an answer, and what one message holds', async () => {
  const { app, alice, bare } = await open({ queuePerSession: 4, body: 3000 })
  const id = await alice.open()
  const { socket, until } = await bare(id)
  for (let t = 0; t < 7; t++)
    socket.send(frame({ op: 'append', layer: '0', offset: String(t) }, rowTensors(seq, t, t + 1)))
  const answers = await until(7)
  expect(answers.map(({ status }) => status)).toEqual('200 200 200 200 429 429 429'.split(' '))
  socket.send(frame({ op: 'append', layer: '0', offset: '4' }, rowTensors(seq, 0, 40)))
  expect((await until(8))[7].code).toBe('too_large')
  let code = 0
  socket.addEventListener('close', (event) => {
    code = event.code
  })
  for (let t = 0; t < 20; t++) socket.send(frame({ op: 'attend', layer: '0' }, [queryTensor(seq, 0)]))
  while (code === 0) await new Promise((resolve) => setTimeout(resolve, 1))
  expect(code).toBe(1008)
  expect(await alice.lengths(id)).toEqual([4, 0])
  await app.dispose()
})

it('needs a token and a session of its own', async () => {
  const { app, alice, bob, pairs } = await open()
  const ids = [await alice.open(), await bob.open()]
  const refused = async (id: string, token: string | undefined) => {
    const protocols = ['pariskv', ...(token ? [`pariskv.token.${btoa(token).replaceAll('=', '')}`] : [])]
    const socket = pairs.connect(app, `http://host/v1/sessions/${id}/socket`, protocols)
    return new Promise((resolve) => {
      socket.addEventListener('close', () => resolve(true))
      socket.addEventListener('open', () => resolve(false))
    })
  }
  expect(await refused(ids[0], undefined)).toBe(true)
  expect(await refused(ids[0], 'token-of-nobody')).toBe(true)
  expect(await refused(ids[1], 'token-of-alice')).toBe(true)
  expect(await refused(ids[0], 'token-of-alice')).toBe(false)
  await app.dispose()
})

it('has no more rights than its token at each message', async () => {
  const tokens = new Map([
    ['token-of-alice', 'alice'],
    ['token-of-bob', 'alice'],
  ])
  const { app, alice, bob, bare } = await open({}, { auth: { tokens } })
  const id = await alice.open()
  const { socket, until } = await bare(id)
  const append = (t: number) =>
    socket.send(frame({ op: 'append', layer: '0', offset: String(t) }, rowTensors(seq, t, t + 1)))
  append(0)
  await until(1)
  tokens.delete('token-of-alice')
  append(1)
  await until(2)
  tokens.set('token-of-alice', 'another')
  append(1)
  await until(3)
  tokens.set('token-of-alice', 'alice')
  append(1)
  const answers = await until(4)
  expect(answers.map(({ status, code }) => code ?? status)).toEqual(['200', 'unauthorized', 'not_found', '200'])
  expect(await bob.lengths(id)).toEqual([2, 0])
  await app.dispose()
})

it('a socket that cannot be sent to ends its calls, and nothing else', async () => {
  let events: WSEvents = {}
  const upgrade = (create: (c: Context) => WSEvents | Promise<WSEvents>) => async (c: Context) => {
    events = await create(c)
    return c.body(null, 200)
  }
  const { app, alice } = await local({ upgradeWebSocket: upgrade as never })
  const id = await alice.open()
  await alice.send('GET', `/v1/sessions/${id}/socket`, undefined, { upgrade: 'websocket' })
  const rejected: unknown[] = []
  const onRejection = (reason: unknown) => void rejected.push(reason)
  process.on('unhandledRejection', onRejection)
  const broken = () => {
    throw new Error('broken')
  }
  const ws = { readyState: 1, send: broken, close: broken } as unknown as WSContext
  events.onOpen?.(new Event('open'), ws)
  for (const t of [0, 1]) {
    const data = frame({ op: 'append', layer: '0', offset: String(t) }, rowTensors(seq, t, t + 1)).buffer
    events.onMessage?.(new MessageEvent('message', { data }), ws)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  // The second one came over a socket that is broken.
  expect(await alice.lengths(id)).toEqual([1, 0])
  await app.drain()
  await new Promise((resolve) => setTimeout(resolve, 5))
  process.off('unhandledRejection', onRejection)
  expect(rejected).toEqual([])
  await app.dispose()
})

it('closes when the server drains, behind the answers owed', async () => {
  const { app, alice, bare } = await open()
  const { socket, answers } = await bare(await alice.open())
  const closed = new Promise<number>((resolve) => socket.addEventListener('close', ({ code }) => resolve(code)))
  socket.send(frame({ op: 'append', layer: '0', offset: '0' }, rowTensors(seq, 0, 40)))
  await new Promise((resolve) => setTimeout(resolve, 5))
  await app.drain()
  expect(await closed).toBe(1001)
  expect(answers.map(({ status }) => status)).toEqual(['200'])
  await app.dispose()
})
