import { K } from './wasm-bed.ts'
import type { TiledKeys } from './wasm-data.ts'

/** An index of another library over the same keys. */
export interface GraphIndex {
  readonly name: string
  readonly buildSeconds: number
  search(query: Float32Array): Uint32Array
}

const CONNECTIVITY = 16
const BUILD = 128
const SEARCH = 200
/** Keys that are added before the rest of the build is foretold. */
const TRIAL = 2000

/** Says why an index is not there. */
export class Skipped extends Error {}

/** Builds one index on one thread; throws `Skipped` where the library is missing or the build would take too long. */
export async function buildGraph(
  library: 'usearch' | 'hnswlib-node',
  source: TiledKeys,
  count: number,
  maxSeconds: number,
): Promise<GraphIndex> {
  const { add, search } = library === 'usearch' ? await usearch(source.d) : await hnswlib(source.d, count)
  const started = performance.now()
  const seconds = () => (performance.now() - started) / 1000
  let tile = source.keys(0)
  for (let n = 0; n < count; n++) {
    if (n > 0 && n % source.tile === 0) tile = source.keys(n / source.tile)
    const at = (n % source.tile) * source.d
    add(n, tile.subarray(at, at + source.d))
    if (n === TRIAL) {
      // A key costs about as much as the logarithm of those before it.
      const foretold = (seconds() * count * Math.log(count)) / (TRIAL * Math.log(TRIAL))
      if (foretold > maxSeconds)
        throw new Skipped(
          `building it would take about ${foretold.toFixed(0)} s (limit ${maxSeconds} s, --build-seconds)`,
        )
    }
  }
  const buildSeconds = seconds()
  return { name: `${library} M ${CONNECTIVITY}, ef ${SEARCH}`, buildSeconds, search }
}

interface Index {
  add(id: number, key: Float32Array): void
  search(query: Float32Array): Uint32Array
}

async function load<T>(name: string, load: () => Promise<T>): Promise<T> {
  try {
    return await load()
  } catch (error) {
    throw new Skipped(`${name} does not load here: ${error instanceof Error ? error.message.split('\n')[0] : error}`)
  }
}

async function usearch(d: number): Promise<Index> {
  const { Index, MetricKind, ScalarKind } = await load('usearch', () => import('usearch'))
  const index = new Index({
    dimensions: d,
    metric: MetricKind.IP,
    quantization: ScalarKind.F32,
    connectivity: CONNECTIVITY,
    expansion_add: BUILD,
    expansion_search: SEARCH,
    multi: false,
  })
  return {
    add: (id, key) => index.add(BigInt(id), key, 1),
    search: (query) => Uint32Array.from(index.search(query, K, 1).keys, Number),
  }
}

async function hnswlib(d: number, count: number): Promise<Index> {
  const { HierarchicalNSW } = (await load('hnswlib-node', () => import('hnswlib-node'))).default
  const index = new HierarchicalNSW('ip', d)
  index.initIndex({ maxElements: count, m: CONNECTIVITY, efConstruction: BUILD, randomSeed: 42 })
  index.setEf(SEARCH)
  return {
    add: (id, key) => index.addPoint(Array.from(key), id),
    search: (query) => Uint32Array.from(index.searchKnn(Array.from(query), K).neighbors),
  }
}
