import { Engine, type Session } from '../../sdk/index.ts'
import type { Context, Model } from '../../sdk/llm/index.ts'
import { greedy } from '../../sdk/llm/sampler.ts'
import { recallOf } from '../../sdk/retrieve/audit.ts'
import { exactTop } from './baselines/exact-top.ts'
import { productQuantizer, type Quantizer, type QuantizerIndex } from './baselines/product-quantizer.ts'
import { type Rows, readRows, rowsOf } from './baselines/rows.ts'
import type { Task, Tasks } from './drift-tasks.ts'
import { ZONES } from './quality-selectors.ts'

const K = 100
const QUANTIZERS = [productQuantizer(2, 64), productQuantizer(16, 64)]

/** An engine that lets one look at the queries of a step, before it attends. */
export class WatchedEngine extends Engine {
  watch: ((session: Session, layer: number, queries: Float32Array) => Promise<void>) | undefined

  override async attendBatch(...[items, options]: Parameters<Engine['attendBatch']>) {
    for (const { session, layer, queries } of items) await this.watch?.(session, layer, queries as Float32Array)
    return super.attendBatch(items, options)
  }
}

/** Mean recall@100 in one window of answer tokens. */
export interface Window {
  readonly answered: number
  /** Of the answer tokens, how many were right. */
  readonly right: number
  /** Of the zone's tokens when it was searched, mean. */
  readonly zone: number
  readonly recall: Record<string, number>
}

/** How long the stream is and how often it is looked at. */
export interface StreamPlan {
  readonly windows: number
  /** Answer tokens a window. */
  readonly size: number
  /** Tokens with which a context begins. */
  readonly opening: number
  /** Every n-th answer token is searched for. */
  readonly every: number
  readonly progress: (done: number, total: number) => void
}

/**
 * Answers a stream of tasks. Each window is two contexts that begin alike in every window: a text with questions, then
 * copies behind one that is given with its answer. So zones are as long in every window, and only the keys differ.
 * Frozen quantizers keep what they learned of the first text; their pairs learn each context's beginning.
 */
export async function runStream(
  engine: WatchedEngine,
  model: Model,
  tasks: Tasks,
  plan: StreamPlan,
): Promise<Window[]> {
  const rivals = QUANTIZERS.flatMap((finder) => [
    new Rival(`${finder.name} frozen`, finder, true),
    new Rival(`${finder.name} learned anew`, finder, false),
  ])
  const windows: Window[] = []
  for (let w = 0; w < plan.windows; w++) {
    const probe = new Probe(rivals)
    const stream = new Stream(engine, probe, plan, w * plan.size)
    const { opening, questions } = tasks.text(plan.opening)
    await stream.run(model, opening, () => questions.shift())
    const { prompt, answer } = tasks.copy(plan.opening / 2 - 2)
    await stream.run(model, [model.config.bos!, ...prompt, ...answer], () => tasks.anyCopy())
    windows.push({
      answered: stream.done,
      right: stream.right,
      zone: probe.zone / probe.searches,
      recall: probe.means(),
    })
  }
  return windows
}

/** One window under way. */
class Stream {
  done = 0
  right = 0

  constructor(
    private readonly engine: WatchedEngine,
    private readonly probe: Probe,
    private readonly plan: StreamPlan,
    private readonly before: number,
  ) {}

  /** Gives a context its opening and then tasks, until there is none or the window is full. */
  async run(model: Model, opening: readonly number[], next: () => Task | undefined): Promise<void> {
    const { size, windows, progress } = this.plan
    const policy = { ...ZONES, k: K, update: 1, denseBelow: 0 }
    const context = await model.createContext({ capacity: 2 * this.plan.opening + 4 * size, policy, store: 'bf16' })
    await context.prompt(opening)
    this.probe.begin(await rowsOf(context.session), model.config.headDim)
    for (let task = next(); task && this.done < size; task = next()) {
      await this.answer(context, task)
      progress(this.before + this.done, windows * size)
    }
    await context.dispose()
  }

  private async answer(context: Context, { prompt, answer }: Task): Promise<void> {
    const { size, every } = this.plan
    let logits = await context.prompt(prompt)
    for (const want of answer.slice(0, size - this.done)) {
      const id = greedy(logits)
      if (id === want) this.right++
      const looked = ++this.done % every === 0
      this.engine.watch = looked ? (session, l, queries) => this.probe.search(session, l, queries) : undefined
      logits = await context.step(id)
    }
    this.engine.watch = undefined
  }
}

/** A quantizer's codes of the context under way, by layer and KV head. */
class Rival {
  heads: { readonly index: QuantizerIndex; count: number }[][] = []
  private learned: QuantizerIndex[][] = []

  constructor(
    readonly name: string,
    private readonly finder: Quantizer,
    private readonly frozen: boolean,
  ) {}

  begin(rows: Rows, d: number): void {
    const zoneKeys = (keys: Float32Array) => keys.subarray(ZONES.sink * d)
    if (!this.frozen || this.learned.length === 0)
      this.learned = rows.map((layer) => layer.map(({ keys }) => this.finder.index(zoneKeys(keys), d)))
    this.heads = this.learned.map((layer) =>
      layer.map((index) => ({ index: index.over(new Float32Array(0)), count: 0 })),
    )
  }
}

/** Sums of recall, each search compared with the exact top 100 of the same zone. */
class Probe {
  zone = 0
  searches = 0
  private readonly sums = new Map<string, number>()

  constructor(private readonly rivals: readonly Rival[]) {}

  begin(rows: Rows, d: number): void {
    for (const rival of this.rivals) rival.begin(rows, d)
  }

  means(): Record<string, number> {
    return Object.fromEntries([...this.sums].map(([name, sum]) => [name, sum / this.searches]))
  }

  async search(session: Session, layer: number, queries: Float32Array): Promise<void> {
    const { kvHeads, group, headDim: d } = session.config.shape
    const { sink, retrieval: zone } = session.stats().layers[layer].zones
    const { indices } = await session.retrieve(layer, { queries, k: K })
    const found = new Map([['ParisKV signs', indices.map((position) => position - sink)]])
    const exact = new Uint32Array(kvHeads * K)
    for (let h = 0; h < kvHeads; h++) {
      const keys = (await readRows(session, 'keys', layer, h)).subarray(sink * d, (sink + zone) * d)
      const search = { queries: queries.subarray(h * group * d, (h + 1) * group * d), d, keys, zone, k: K }
      exact.set(exactTop.index(keys, d).find(search)[0].ids, h * K)
      for (const { name, heads } of this.rivals) {
        const head = heads[layer][h]
        for (; head.count < zone; head.count++) head.index.add(keys.subarray(head.count * d, (head.count + 1) * d))
        const all = found.get(name) ?? new Uint32Array(kvHeads * K)
        all.set(head.index.find(search)[0].ids, h * K)
        found.set(name, all)
      }
    }
    for (const [name, ids] of found) this.sums.set(name, (this.sums.get(name) ?? 0) + recallOf(ids, exact, kvHeads))
    this.zone += zone
    this.searches++
  }
}
