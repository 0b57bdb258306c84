/**
 * A model folder behind the API that OpenAI's clients speak, as one route of a Hono app; called here without a network.
 * On a machine, `pariskv serve --model DIR` does this, and a client is given `baseURL: 'http://127.0.0.1:8787/v1'`.
 */
import { fileURLToPath } from 'node:url'
import { Hono } from 'hono'
import { createEngine } from 'pariskv'
import { loadModel, openModelFolder } from 'pariskv/llm'
import { createOpenAi } from 'pariskv/openai'
import { makeHaystack } from './support/haystack.ts'

const folder = new URL('models/needle-9m/', import.meta.url)

const llm = createOpenAi({
  // Loaded at the first request, on an engine that the app disposes of.
  models: {
    needle: async () =>
      loadModel({ engine: await createEngine(), source: await openModelFolder(fileURLToPath(folder)) }),
  },
  auth: { tokens: new Map([['secret', 'tenant-a']]) },
  limits: { active: 2, queue: 8 },
  policy: { k: 64, denseBelow: 256 },
})
const app = new Hono().route('/', llm)

const { text, needles } = makeHaystack(folder, 900, 8, 3)
const ask = (fields: object) =>
  app.request('/v1/completions', {
    method: 'POST',
    headers: { authorization: 'Bearer secret' },
    body: JSON.stringify({ model: 'needle', max_tokens: 4, temperature: 0, ...fields }),
  })

const question = (i: number) => `${text} recall the magic number of ${needles[i].name} is`

const whole = await ask({ prompt: question(2) })
const { choices, usage } = (await whole.json()) as { choices: { text: string }[]; usage: object }
console.log(`the magic number of ${needles[2].name}:${choices[0].text} (hidden: ${needles[2].digits})`, usage)

const stream = await ask({ prompt: question(5), max_tokens: 20, stop: ' .', stream: true })
process.stdout.write(`the magic number of ${needles[5].name}:`)
let rest = ''
for await (const part of stream.body!.pipeThrough(new TextDecoderStream())) {
  const events = (rest + part).split('\n\n')
  rest = events.pop()!
  for (const event of events)
    if (event.startsWith('data: {')) process.stdout.write(JSON.parse(event.slice(6)).choices[0].text)
}
console.log(` (hidden: ${needles[5].digits})`)

const refused = await ask({ prompt: 'the', n: 2 })
console.log(refused.status, await refused.json())
await llm.dispose()
