// Milliseconds of a gather of 800 and of 16,384 rows, key and value 256 bytes each, at random places of pages in host
// memory: `memoryPages`, and `sharedPages` with 0 to 7 threads beside the calling one. Every gather has places of its own,
// so that nearly every row comes from memory. `--gb 4` bytes of pages, `--reps 200` gathers of each kind.
// esbuild test/bench/gather.ts --bundle --platform=node --format=esm --external:webgpu --outfile=build/bench-gather.mjs
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { type SharedPages, sharedPages } from '../../adapters/shared-pages.ts'
import { MemoryPages, type PageTier } from '../../sdk/cache/pages.ts'

const PAGE = 2 ** 22
const ROW = 256
const COUNTS = [800, 16_384]

const { values: given } = parseArgs({
  options: { gb: { type: 'string', default: '1' }, reps: { type: 'string', default: '200' } },
})
const pages = Math.ceil((Number(given.gb) * 1e9) / PAGE)
const reps = Number(given.reps)

function open(make: () => PageTier): PageTier {
  const tier = make()
  const half = new Uint8Array(PAGE / 2)
  for (let page = 0; page < pages; page++) {
    tier.take()
    tier.scatter(Float64Array.of(page * PAGE), 1, half.length, half.fill(page + 1), half.fill(page + 2))
  }
  return tier
}

/** Times of so many gathers, in ms, sorted. @param room whether the arrays are memory of the tier's own */
async function times(tier: PageTier, count: number, room: boolean): Promise<number[]> {
  const array = () => (room && tier.room?.(count * ROW)) || new Uint8Array(count * ROW)
  const [keys, values, at] = [array(), array(), new Float64Array(count)]
  const all: number[] = []
  const warm = 20
  for (let rep = 0; rep < warm + reps; rep++) {
    for (let i = 0; i < count; i++) at[i] = 2 * ROW * Math.floor((Math.random() * pages * PAGE) / (2 * ROW))
    const from = performance.now()
    const late = tier.gather(at, count, ROW, keys, values)
    const time = performance.now() - from
    if (late) throw new Error('threads failed')
    if (rep >= warm) all.push(time)
    if (rep % 10 === 0) await new Promise((resolve) => setImmediate(resolve))
  }
  return all.sort((a, b) => a - b)
}

async function report(name: string, tier: PageTier, room: boolean): Promise<void> {
  const shown: string[] = []
  for (const count of COUNTS) {
    const all = await times(tier, count, room)
    const at = (share: number) => all[Math.floor(share * (all.length - 1))].toFixed(3)
    shown.push(`${count} rows p50 ${at(0.5)} p90 ${at(0.9)} least ${at(0)}`)
  }
  console.log(`${name.padEnd(24)} ${shown.join('   ')}`)
}

/** Threads are made by the first large gather. */
async function waitForThreads(tier: SharedPages): Promise<void> {
  const [keys, values, at] = [tier.room(4096 * ROW), tier.room(4096 * ROW), new Float64Array(4096)]
  for (let i = 0; i < 20 || tier.helped === 0; i++) {
    await tier.gather(at, 4096, ROW, keys, values)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

console.log(`${((pages * PAGE) / 1e9).toFixed(1)} GB in pages, ${availableParallelism()} cores, ms of ${reps} gathers`)
const memory = open(() => new MemoryPages(PAGE))
await report('memoryPages', memory, false)
await memory.dispose()
for (const threads of [1, 3, 7]) {
  const tier = open(() => sharedPages({ threads })(PAGE)) as SharedPages
  // Other arrays than the tier's own keep its threads out.
  if (threads === 1) await report('sharedPages, 0 threads', tier, false)
  await waitForThreads(tier)
  await report(`sharedPages, ${threads} thread${threads > 1 ? 's' : ''}`, tier, true)
  await tier.dispose()
}
