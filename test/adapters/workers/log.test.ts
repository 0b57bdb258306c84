import { abortAllDurableObjects, runInDurableObject } from 'cloudflare:test'
import { describe, expect, test } from 'vitest'
import { append, call, open, rows, stub } from './support.ts'

/** Runs SQL in the storage of a session's object. */
function sql(id: string, query: string): Promise<unknown[]> {
  return runInDurableObject(stub(id), (_, { storage }) => storage.sql.exec(query).toArray())
}

const storeOf = async (id: string) => {
  const [{ record }] = (await sql(id, 'SELECT record FROM session')) as { record: string }[]
  return (JSON.parse(record) as { options: { store?: string } }).options.store
}

describe('the log of a session', () => {
  test('with a gap is told as such, not loaded without what is missing', async () => {
    const id = await open()
    await append(id, 0, 0, rows(10))
    await append(id, 0, 10, rows(5))
    await sql(id, 'DELETE FROM rows WHERE start = 0')
    await abortAllDurableObjects()
    const response = await call(`/v1/sessions/${id}`)
    expect([response.status, await response.json()]).toMatchObject([500, { where: 'the session' }])
  })

  test('has the store of rows that it has, and of no others', async () => {
    const id = await open({ store: undefined })
    await sql(id, "CREATE TRIGGER full BEFORE INSERT ON rows BEGIN SELECT RAISE(ABORT, 'full'); END")
    expect((await append(id, 0, 0, rows(3))).status).toBe(503)
    expect(await storeOf(id)).toBeUndefined()
    await sql(id, 'DROP TRIGGER full')
    expect((await append(id, 0, 0, rows(3))).status).toBe(200)
    expect(await storeOf(id)).toBe('f32')
  })

  test('of a second session in one object has a store of its own', async () => {
    const key = { headers: { 'idempotency-key': crypto.randomUUID() } }
    for (const _ of [1, 2]) {
      const id = await open({ store: undefined }, key)
      await append(id, 0, 0, rows(3))
      expect(await storeOf(id)).toBe('f32')
      await call(`/v1/sessions/${id}`, { method: 'DELETE' })
    }
  })
})
