import { expect, it } from 'vitest'
import { buildFrame } from '../../sdk/http/tensors.ts'
import { integer, random } from '../support/inputs.ts'
import { sequence } from '../support/sessions.ts'
import { local } from './served.ts'
import { expectProblem, queryTensor, rowTensors } from './support.ts'

const full = process.env.PARISKV_TEST === 'full'
const seed = Number(process.env.PARISKV_SEED ?? Date.now() % 1e9)
const seq = sequence(3, 40)

const WORDS = [
  'keys',
  'values',
  'queries',
  '__proto__',
  '__metadata__',
  'dtype',
  'shape',
  'data_offsets',
  'F32',
  'F16',
  'I8',
  '-1',
  '1e308',
  '9007199254740993',
  '1.5',
  'null',
  'true',
  '[]',
  '{}',
  '"',
  '\\u0000',
  '\ud800',
  ',',
  ':',
  '[[[[[[[[[[',
  '}',
  '0',
  '4294967296',
]

/** The header of a frame, mutated: bytes flipped, words put in, pieces cut out or doubled; at times its size lies. */
function mutate(frame: Uint8Array<ArrayBuffer>, next: () => number): Uint8Array<ArrayBuffer> {
  const size = Number(new DataView(frame.buffer).getBigUint64(0, true))
  let text = new TextDecoder().decode(frame.subarray(8, 8 + size))
  for (let n = integer(next, 1, 4); n > 0; n--) {
    const at = integer(next, 0, text.length)
    const to = Math.min(text.length, at + integer(next, 0, 12))
    const kind = integer(next, 0, 4)
    if (kind === 0) text = text.slice(0, at) + String.fromCharCode(integer(next, 0, 255)) + text.slice(at + 1)
    else if (kind === 1) text = text.slice(0, at) + WORDS[integer(next, 0, WORDS.length - 1)] + text.slice(at)
    else if (kind === 2) text = text.slice(0, at) + text.slice(to)
    else if (kind === 3) text = text.slice(0, to) + text.slice(at)
    else text = text.replace(/\d+/g, (digits) => (next() < 0.2 ? String(integer(next, 0, 2 ** 31) - 5) : digits))
  }
  const json = new TextEncoder().encode(text)
  const data = frame.subarray(8 + size)
  const out = new Uint8Array(8 + json.length + data.length)
  const lie = next() < 0.1
  new DataView(out.buffer).setBigUint64(
    0,
    lie ? BigInt(integer(next, 0, 70_000)) << BigInt(integer(next, 0, 40)) : BigInt(json.length),
    true,
  )
  out.set(json, 8)
  out.set(data, 8 + json.length)
  return next() < 0.1 ? out.slice(0, integer(next, 0, out.length)) : out
}

it(`mutated headers: refused or taken, never a 5xx (seed ${seed})`, {
  timeout: full ? 1_800_000 : 120_000,
}, async () => {
  const { app, alice } = await local()
  const id = await alice.open()
  const next = random(seed)
  const frames = [
    ['PUT', '/layers/0/kv?offset=0', buildFrame(rowTensors(seq, 0, 3))],
    ['POST', '/layers/0/attend', buildFrame([queryTensor(seq, 0)])],
    ['POST', '/layers/0/step', buildFrame([...rowTensors(seq, 0, 1), queryTensor(seq, 0)])],
    ['POST', ':restore', new Uint8Array()],
  ] as const
  await alice.append(id, seq, 0, 0)
  const snapshot = new Uint8Array(await (await alice.send('GET', `/v1/sessions/${id}/snapshot`)).arrayBuffer())
  const counts = new Map<number, number>()
  const total = full ? 100_000 : 3000
  for (let i = 0; i < total; i++) {
    const [method, path, frame] = frames[integer(next, 0, i % 50 === 0 ? 3 : 2)]
    const restoring = path === ':restore'
    const body = mutate(restoring ? snapshot : frame, next)
    const target = restoring ? '/v1/sessions:restore' : `/v1/sessions/${id}${path}`
    const response = await alice.send(method, target, body)
    if (response.status >= 500) expect.fail(`seed ${seed}, body ${i}: ${response.status} ${await response.text()}`)
    counts.set(response.status, (counts.get(response.status) ?? 0) + 1)
    if (response.status === 201)
      await alice.send('DELETE', `/v1/sessions/${((await response.json()) as { id: string }).id}`)
    else if (response.status !== 200)
      await expectProblem(response, ((await response.clone().json()) as { code: 'bad_body' }).code)
    if (response.status === 200) await alice.json('POST', `/v1/sessions/${id}/truncate?length=0`)
  }
  console.log(
    `${total} mutated headers, seed ${seed}: ${[...counts].map(([status, n]) => `${status}: ${n}`).join(', ')}`,
  )
  expect(counts.get(400)).toBeGreaterThan(total / 2)
  await alice.append(id, seq, 0, 3)
  await app.dispose()
})

it('a storm of aborts leaves nothing behind', { timeout: full ? 1_800_000 : 120_000 }, async () => {
  const { app, alice } = await local({ metricsToken: 'm' })
  const id = await alice.open()
  await alice.append(id, seq, 0, 20)
  const gauges = async () => {
    const text = await (await app.request('/metrics', { headers: { authorization: 'Bearer m' } })).text()
    const names = ['requests_in_flight', 'buffered_bytes', 'sessions', 'session_bytes', 'session_bytes_held']
    return names.map((name) => text.split('\n').find((line) => line.startsWith(`pariskv_${name} `)))
  }
  const before = await gauges()
  const next = random(seed)
  const total = full ? 10_000 : 400
  const statuses = new Map<number, number>()
  const one = async () => {
    const controller = new AbortController()
    const [signal, kind] = [controller.signal, integer(next, 0, 3)]
    const init = (method: string, body?: BodyInit | null): RequestInit =>
      ({
        method,
        body,
        signal,
        headers: { authorization: 'Bearer token-of-alice' },
        ...(body instanceof ReadableStream && { duplex: 'half' }),
      }) as RequestInit
    const half = () =>
      new ReadableStream<Uint8Array>({ start: (c) => c.enqueue(buildFrame(rowTensors(seq, 0, 1)).subarray(0, 40)) })
    const calls = [
      () => app.request(`/v1/sessions/${id}/layers/0/attend`, init('POST', buildFrame([queryTensor(seq, 0)]))),
      () => app.request(`/v1/sessions/${id}/layers/1/kv?offset=0`, init('PUT', half())),
      () => app.request(`/v1/sessions/${id}/snapshot`, init('GET')),
      () => app.request('/v1/sessions:restore', init('POST', half())),
    ]
    const answer = Promise.resolve(calls[kind]())
    await new Promise((resolve) => setTimeout(resolve, integer(next, 0, 3)))
    controller.abort()
    const response = await answer
    await response.body?.cancel().catch(() => {})
    statuses.set(response.status, (statuses.get(response.status) ?? 0) + 1)
  }
  for (let done = 0; done < total; done += 20) await Promise.all(Array.from({ length: 20 }, one))
  await new Promise((resolve) => setTimeout(resolve, 20))
  expect(await gauges()).toEqual(before)
  expect(await alice.lengths(id)).toEqual([20, 0])
  for (const status of statuses.keys()) expect([200, 429, 499]).toContain(status)
  expect(statuses.get(499)).toBeGreaterThan(0)
  await alice.append(id, seq, 20, 22)
  await app.dispose()
})
