import type { OffloadedLayer } from '../../sdk/cache/offload.ts'
import { f32ToBf16 } from '../../sdk/dtype.ts'
import type { Session } from '../../sdk/session/session.ts'

/** The published setting: 8 KV heads, 32 query heads, d = 128. */
export const SHAPE = { kvHeads: 8, queryHeads: 32, headDim: 128 } as const
const { kvHeads: H, queryHeads: HQ, headDim: D } = SHAPE

const PIECE = 2048
const TOPICS = 512

/** A generator on [0, 1). */
export function uniform(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return (state + 0.5) / 2 ** 32
  }
}

const next = uniform(7)
const gaussian = () => Math.sqrt(-2 * Math.log(next())) * Math.cos(2 * Math.PI * next())
const NOISE = Float32Array.from({ length: 1 << 20 }, gaussian)
const TOPIC = Float32Array.from({ length: H * TOPICS * D }, gaussian)

/** Keys about a topic for 64 tokens at a time, values without any; [H, count, d] bf16 bits of tokens from `from` on. */
function tokens(from: number, count: number) {
  const [keys, values] = [new Uint16Array(H * count * D), new Uint16Array(H * count * D)]
  for (let h = 0; h < H; h++)
    for (let n = 0; n < count; n++) {
      const to = (h * count + n) * D
      const topic = (h * TOPICS + topicOf(from + n)) * D
      const own = Math.imul(from + n, 2654435761) >>> 13
      for (let j = 0; j < D; j++) {
        const noise = NOISE[(own + h * 131 + j) & (NOISE.length - 1)]
        keys[to + j] = f32ToBf16(0.8 * TOPIC[topic + j] + noise)
        values[to + j] = f32ToBf16(NOISE[(own + 7777 + h * 131 + j) & (NOISE.length - 1)])
      }
    }
  return { keys: { dtype: 'bf16', data: keys }, values: { dtype: 'bf16', data: values } } as const
}

function topicOf(token: number): number {
  return (Math.imul(Math.floor(token / 64) + 1, 2246822519) >>> 8) % TOPICS
}

/** Fills layers with tokens up to `length`. */
export async function fillTo(session: Session, length: number): Promise<void> {
  const { layers } = session.config.shape
  for (let from = session.length(); from < length; from += PIECE) {
    const piece = tokens(from, Math.min(PIECE, length - from))
    for (let layer = 0; layer < layers; layer++) await session.append(layer, piece)
  }
}

/** The next token of every layer. */
export async function appendOne(session: Session): Promise<void> {
  const piece = tokens(session.length(), 1)
  for (let layer = 0; layer < session.config.shape.layers; layer++) await session.append(layer, piece)
}

/** [Hq, d]: queries about a topic that lasts some steps, with noise anew at each. */
export function queriesOf(step: number, lasting: number): Float32Array {
  const topic = (Math.imul(Math.floor(step / lasting) + 1, 40503) >>> 3) % TOPICS
  return Float32Array.from({ length: HQ * D }, (_, i) => {
    const h = Math.floor(i / D / (HQ / H))
    return TOPIC[(h * TOPICS + topic) * D + (i % D)] + 0.4 * gaussian()
  })
}

export const median = (values: readonly number[]) => [...values].sort((a, b) => a - b)[values.length >> 1]

/** Milliseconds on a clock of one's choice: of the wall, or of this process's work where a machine is shared. */
export type Clock = () => number
export const wallClock: Clock = () => performance.now()
export const workClock: Clock = () => {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1e3
}

/** Median milliseconds of a call over some rounds, after three that do not count. @param before runs ahead of each, untimed */
export async function timeOf(
  rounds: number,
  call: (round: number) => Promise<unknown>,
  clock = wallClock,
  before: () => Promise<unknown> = async () => {},
) {
  const times: number[] = []
  for (let i = -3; i < rounds; i++) {
    await before()
    const from = clock()
    await call(i + 3)
    if (i >= 0) times.push(clock() - from)
  }
  return median(times)
}

/**
 * Milliseconds to bring K rows a head onto the device, the read-back of their ids included: by itself, and until the
 * device has them.
 * @param hits share of the rows that the step before had
 */
export async function fetchTimes(
  session: Session,
  k: number,
  zone: number,
  hits: number,
  rounds: number,
  clock = wallClock,
  prepare: () => Promise<unknown> = async () => {},
) {
  const { backend, cache } = session.state
  const { offload } = cache!.layer(0) as { offload: OffloadedLayer }
  const [buf] = await backend.alloc([{ label: 'ids', bytes: H * k * 4 }])
  const [enqueued, landed]: number[][] = [[], []]
  const seen = () => session.stats().offload ?? { hits: 0, misses: 0 }
  const before = seen()
  let ids = draw(undefined, k, zone, 0)
  for (let i = -2; i < rounds; i++) {
    ids = draw(ids, k, zone, hits)
    backend.write(buf, 0, new Uint8Array(ids.buffer))
    await backend.read(buf, 0, 4)
    await prepare()
    const from = clock()
    const raw = await backend.read(buf, 0, H * k * 4)
    const places = await offload.fetch(
      new Uint32Array(raw.buffer, raw.byteOffset, H * k),
      k,
      session.config.policy.sink,
    )
    backend.write(buf, 0, new Uint8Array(places.buffer, 0, places.byteLength))
    const done = clock()
    await backend.read(buf, 0, 4)
    if (i < 0) continue
    enqueued.push(done - from)
    landed.push(clock() - from)
  }
  backend.free([buf])
  return { enqueued: median(enqueued), landed: median(landed), hits: hitsBetween(before, seen()) }
}

/** Share of rows that were on the device, between two looks at `stats`. */
export function hitsBetween(a: Seen, b: Seen): string {
  const [hits, misses] = [b.hits - a.hits, b.misses - a.misses]
  return `${((100 * hits) / Math.max(1, hits + misses)).toFixed(0)}%`
}

interface Seen {
  readonly hits: number
  readonly misses: number
}

/** [H, k] distinct indices below `zone`, that share of them from `before`. */
function draw(before: Uint32Array | undefined, k: number, zone: number, share: number): Uint32Array<ArrayBuffer> {
  const out = new Uint32Array(H * k)
  for (let h = 0; h < H; h++) {
    const kept = before ? Math.round(k * share) : 0
    const seen = new Set<number>(before?.subarray(h * k, h * k + kept))
    while (seen.size < k) seen.add(Math.floor(next() * zone))
    out.set([...seen].slice(0, k), h * k)
    // What was fetched last stays longest: the next step keeps from the end.
    out.subarray(h * k, (h + 1) * k).reverse()
  }
  return out
}
