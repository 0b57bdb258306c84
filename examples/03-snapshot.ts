/** Snapshot: put a session into a file, take it out again, go on where it was. */
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable, Writable } from 'node:stream'
import { createEngine } from 'pariskv'
import { loadCapture, queriesAt, tokensOf } from './support/capture.ts'

const capture = loadCapture()
const folder = await mkdtemp(join(tmpdir(), 'pariskv-'))
const file = join(folder, 'session.safetensors')
const engine = await createEngine()
try {
  const session = await engine.createSession({ layers: 1, queryHeads: 4, kvHeads: 1, headDim: 128, capacity: 8192 })
  await session.append(0, tokensOf(capture, 0, 4000))
  await session.snapshot().pipeTo(Writable.toWeb(createWriteStream(file)))
  console.log(`wrote ${((await stat(file)).size / 2 ** 20).toFixed(2)} MiB`)

  const restored = await engine.restore(Readable.toWeb(createReadStream(file)) as ReadableStream<Uint8Array>)
  await restored.append(0, tokensOf(capture, 4000, 4096))
  await session.append(0, tokensOf(capture, 4000, 4096))
  const queries = queriesAt(capture, 255)
  const [a, b] = [await session.attend(0, { queries }), await restored.attend(0, { queries })]
  console.log(
    'the restored session answers alike:',
    a.output.every((v, i) => v === b.output[i]),
  )
} finally {
  await engine.dispose()
  await rm(folder, { recursive: true })
}
