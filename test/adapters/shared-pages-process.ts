// A process with an open tier whose threads have gathered. It opens and disposes of others, as many as its second argument
// says, and ends as its first says.
import { type SharedPages, sharedPages } from '../../adapters/shared-pages.ts'

const PAGE = 2 ** 22
const PAGES = 24
const ROW = 256
const COUNT = 1024

const [how, rounds] = process.argv.slice(2)
const open = sharedPages({ threads: 2 })
const kept = open(PAGE) as SharedPages
let most = 0
for (let round = 0; round < Number(rounds) || kept.helped === 0; round++) {
  const tier = open(PAGE) as SharedPages
  const whole = new Uint8Array(PAGE / 2).fill(round)
  for (let page = 0; page < PAGES; page++)
    tier.scatter(Float64Array.of(tier.take() * PAGE), 1, whole.length, whole, whole)
  const at = Float64Array.from({ length: COUNT }, (_, i) => (i % PAGES) * PAGE + i * 2 * ROW)
  const [keys, values] = [tier.room(COUNT * ROW), tier.room(COUNT * ROW)]
  for (let i = 0; i < 4; i++) await tier.gather(at, COUNT, ROW, keys, values)
  const want = new Uint8Array(COUNT * ROW).fill(round)
  if (Buffer.compare(keys, want) !== 0 || Buffer.compare(values, want) !== 0) throw new Error('other bytes')
  most = Math.max(most, process.memoryUsage().rss)
  await tier.dispose()
  await new Promise((resolve) => setTimeout(resolve, 5))
}
// Sixteen tiers that nobody frees take 1.6 GB.
if (most > 600e6) throw new Error(`${most} bytes of ${PAGES * PAGE} at a time`)
console.log(`helped ${kept.helped}, ${most} bytes at most`)
if (how === 'exit') process.exit(5)
if (how === 'throw') throw new Error('a fault')
