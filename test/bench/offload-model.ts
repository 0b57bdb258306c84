// needle-9m on one core in WebAssembly over a cache of 65,536 tokens: rows in host memory, in linear memory, and full
// attention. `npx tsx test/bench/offload-model.ts [--quick] [--sizes=65536]`. The cache holds random rows, so that hits are
// fewer than of a text; times are of this process's own work, which a busy machine does not change much.
import { fileURLToPath } from 'node:url'
import { openModelFolder } from '../../adapters/node-files.ts'
import { createWasmBackend } from '../../sdk/backends/wasm.ts'
import { Engine } from '../../sdk/engine.ts'
import { loadModel } from '../../sdk/llm/model.ts'
import { compileKernels } from '../support/kernels-wasm.ts'
import { given, Report } from './gpu-report.ts'
import { workClock } from './offload-data.ts'
import { compareForks, openRandom } from './offload-needle.ts'
import { TABLE_HEAD } from './offload-table.ts'

const quick = process.argv.includes('--quick')
const SIZES = given('sizes')?.split(',').map(Number) ?? [quick ? 8192 : 65_536]
const PACE = { ...(quick ? { warm: 6, steps: 8 } : { warm: 40, steps: 64 }), clock: workClock }

const out = new Report('offload-model.json')
await using engine = new Engine(createWasmBackend(compileKernels()))
const folder = fileURLToPath(new URL('../../examples/models/needle-9m/', import.meta.url))
const model = await loadModel({ engine, source: await openModelFolder(folder) })
for (const size of SIZES)
  await out.section('needle', `needle-9m, ${size} tokens, ${engine.info.description}`, async () => {
    const base = await openRandom(model, size, {})
    console.log(TABLE_HEAD)
    await compareForks(out, model, base, { pace: PACE, forced: 8, head: 0, policy: {} })
    await base.dispose()
  })
