/**
 * Whether rows for the next step can be guessed: of a model's own decoding, how many retrieved rows a cache of hot rows has
 * already, and how many it would have had if the near misses of each step (ranks K to 2K) had been fetched too.
 * `npx tsx test/bench/prefetch.ts [--tokens=8192] [--steps=400]`
 */
import { fileURLToPath } from 'node:url'
import { createEngine } from 'pariskv'
import { loadModel, openModelFolder } from 'pariskv/llm'
import { HotRows } from '../../sdk/cache/hot-rows.ts'
import { greedy } from '../../sdk/llm/sampler.ts'
import { WatchedEngine } from './drift-stream.ts'
import { Tasks } from './drift-tasks.ts'
import { ZONES } from './quality-selectors.ts'

const given = (name: string, usual: number) =>
  Number(process.argv.find((arg) => arg.startsWith(`--${name}=`))?.slice(name.length + 3) ?? usual)
const [TOKENS, STEPS, K] = [given('tokens', 8192), given('steps', 400), 100]
const SLOTS = [200, 400, 1024]

/** A cache of hot rows that is asked for K rows a head at each step, and given as many more ahead. */
class Watched {
  private readonly hot: HotRows
  asked = 0
  found = 0
  moved = 0

  constructor(
    slots: number,
    heads: number,
    private readonly ahead: boolean,
  ) {
    this.hot = new HotRows(slots * heads)
  }

  /** @param ids [H, 2K], best first */
  step(ids: Uint32Array, heads: number): void {
    const rows = (from: number, to: number) =>
      Float64Array.from({ length: heads * (to - from) }, (_, i) => {
        const h = Math.floor(i / (to - from))
        return ids[h * 2 * K + from + (i % (to - from))] * heads + h
      })
    this.asked += heads * K
    this.found += heads * K - this.fetch(rows(0, K))
    if (this.ahead) this.fetch(rows(K, 2 * K))
  }

  private fetch(rows: Float64Array): number {
    const plan = this.hot.plan(rows, rows.length)
    this.hot.commit(rows, plan)
    this.moved += plan.fetched.length
    return plan.fetched.length
  }
}

const { backend } = await createEngine({ device: 'wasm' })
const engine = new WatchedEngine(backend)
try {
  const folder = new URL('../../examples/models/needle-9m/', import.meta.url)
  const model = await loadModel({ engine, source: await openModelFolder(fileURLToPath(folder)) })
  const { layers, kvHeads: heads } = model.config
  const caches = Array.from({ length: layers }, () =>
    SLOTS.flatMap((slots) => [false, true].map((ahead) => new Watched(slots, heads, ahead))),
  )
  const policy = { ...ZONES, k: K, update: 1, denseBelow: 0 }
  const context = await model.createContext({ capacity: TOKENS + 4 * STEPS + 4096, policy, store: 'bf16' })
  const tasks = new Tasks(model, folder, 1)
  const { opening, questions } = tasks.text(TOKENS)
  process.stderr.write(`reading ${opening.length} tokens\n`)
  await context.prompt(opening)
  let steps = 0
  while (steps < STEPS) {
    const task = questions.shift() ?? tasks.anyCopy()
    let logits = await context.prompt(task.prompt)
    for (let i = 0; i < task.answer.length && steps < STEPS; i++, steps++) {
      engine.watch = async (session, layer, queries) => {
        const { indices } = await session.retrieve(layer, { queries, k: 2 * K })
        for (const cache of caches[layer]) cache.step(indices, heads)
      }
      logits = await context.step(greedy(logits))
      engine.watch = undefined
    }
  }
  console.log(`${steps} steps behind ${TOKENS} tokens, ${layers} layers x ${heads} heads, K ${K}`)
  for (const [s, slots] of SLOTS.entries()) {
    const [without, ahead] = [0, 1].map((a) => {
      const all = caches.map((layer) => layer[2 * s + a])
      const sum = (of: (cache: Watched) => number) => all.reduce((total, cache) => total + of(cache), 0)
      return { hits: sum((c) => c.found) / sum((c) => c.asked), moved: sum((c) => c.moved) / sum((c) => c.asked) }
    })
    const percent = (share: number) => `${(100 * share).toFixed(1)}%`
    console.log(
      `${slots} hot rows a head: ${percent(without.hits)} hits, ${percent(without.moved)} of K moved; ` +
        `near misses fetched too: ${percent(ahead.hits)} hits, ${percent(ahead.moved)} moved`,
    )
  }
} finally {
  await engine.dispose()
}
