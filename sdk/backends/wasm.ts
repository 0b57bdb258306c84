import type { Backend, Buf, Kernels, ReadPart } from '../backend.ts'
import type { Rows } from '../codec/codec.ts'
import { BackendUnavailable } from '../errors.ts'
import { type Arena, address, LinearMemory, outOfMemory } from './wasm-memory.ts'
import { DTYPES, type ModelExports, modelKernels } from './wasm-model.ts'

export interface WasmOptions {
  /** Cap on the linear memory. Default 3.5 GiB: refusals come well before the 4 GiB that 32-bit addresses end at. */
  readonly maxBytes?: number
}

export interface WasmBackend extends Backend {
  /** Reads every byte of a buffer once and does nothing with it: what this machine's memory gives one core. */
  stream(buf: Buf): void
}

const PAGE = 65536
const DEFAULT_MAX_BYTES = 3.5 * 2 ** 30

/** The kernels as the module exports them: numbers only, addresses for buffers. See `assembly/`. */
type Exports = Arena &
  ModelExports & {
    [name in Exclude<keyof Kernels, 'rerank' | keyof ModelExports> | 'rerankCodes' | 'rerankRows' | 'stream']: (
      ...args: number[]
    ) => number
  }

/** (func (v128.const 0) drop): valid where fixed-width SIMD is. */
const SIMD_PROBE = Uint8Array.from([
  ...[0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 23, 1, 21, 0, 253, 12],
  ...new Uint8Array(16),
  ...[26, 11],
])

/**
 * The SIMD kernels of `assembly/` on one core, in one linear memory of their own.
 * @param module `kernels.wasm`, compiled by the caller; it is instantiated here, never compiled
 * @throws BackendUnavailable without WebAssembly SIMD, or where the module cannot be instantiated
 */
export function createWasmBackend(module: WebAssembly.Module, options: WasmOptions = {}): WasmBackend {
  const maxBytes = Math.min(options.maxBytes ?? DEFAULT_MAX_BYTES, 2 ** 32 - PAGE)
  const { memory, exports } = instantiate(module, maxBytes)
  const linear = new LinearMemory(memory, exports, maxBytes)
  const readNow = ({ buf, offset, bytes }: ReadPart) => {
    const from = linear.range(buf, offset, bytes)
    return linear.u8.slice(from, from + bytes)
  }
  return {
    ...kernelsOf(exports),
    ...modelKernels(exports, linear),
    name: 'wasm',
    description: 'WebAssembly SIMD, one thread',
    layout: { block: 16, align: 1 },
    async alloc(requests) {
      return linear.alloc(requests)
    },
    free: (buffers) => linear.free(buffers),
    write: (buf, offset, data) => linear.u8.set(data, linear.range(buf, offset, data.length)),
    copy(src, srcOffset, dst, dstOffset, bytes) {
      const from = linear.range(src, srcOffset, bytes)
      linear.u8.copyWithin(linear.range(dst, dstOffset, bytes), from, from + bytes)
    },
    clear(buf) {
      linear.u8.fill(0, address(buf), address(buf) + buf.bytes)
    },
    async read(buf, offset, bytes) {
      return readNow({ buf, offset, bytes })
    },
    async readAll(parts) {
      return parts.map(readNow)
    },
    stream: (buf) => void exports.stream(address(buf), buf.bytes),
    parts: () => 1,
    allocated: () => linear.allocated(),
    limits: () => ({ total: maxBytes, buffer: maxBytes }),
    dispose: () => linear.dispose(),
  }
}

/** To be called before the module is compiled, which fails without SIMD too, but says less. @throws BackendUnavailable */
export function requireSimd(): void {
  if (typeof WebAssembly === 'undefined' || !WebAssembly.validate(SIMD_PROBE))
    throw new BackendUnavailable(
      'wasm',
      'no WebAssembly SIMD',
      'Use a runtime of 2022 or later, or device: "reference".',
    )
}

function instantiate(module: WebAssembly.Module, maxBytes: number) {
  requireSimd()
  try {
    const memory = new WebAssembly.Memory({ initial: 2, maximum: Math.floor(maxBytes / PAGE) })
    const refuse = (bytes: number) => {
      throw outOfMemory('wasm kernel scratch', bytes >>> 0, memory.buffer.byteLength, maxBytes)
    }
    const instance = new WebAssembly.Instance(module, { env: { memory }, arena: { refuse } })
    const exports = instance.exports as unknown as Exports
    if (typeof exports.allocate !== 'function') throw new Error('the module is not kernels.wasm')
    return { memory, exports }
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new BackendUnavailable('wasm', reason, 'Hand in the compiled build/kernels.wasm of this version.', cause)
  }
}

const rowsArgs = (rows: Rows) => [address(rows.buf), DTYPES[rows.dtype], rows.cap] as const

/** Each verb: a batch into calls, a job into numbers, in the order of the exported function's parameters. */
function kernelsOf(wasm: Exports): Omit<Kernels, keyof ModelExports> {
  return {
    rotate(jobs) {
      for (const { x, rows, rotation: r, y, exponents } of jobs)
        wasm.rotate(address(x), rows, r.d, r.D, address(r.signs), address(y), address(exponents))
    },
    encode(jobs) {
      for (const { keys, heads, from, count, rotation: r, summary: s, at } of jobs) {
        const codes = [s.signs, s.magnitudes, s.weights, s.scales, s.norms, s.normExp, s.counts].map(address)
        wasm.encode(...rowsArgs(keys), heads, from, count, r.d, r.D, address(r.signs), s.cap, at, ...codes)
      }
    },
    query(jobs) {
      for (const { queries, heads, group, choosers, rotation: r, chosen, y, scales, t } of jobs) {
        const out = [chosen, y, scales, t].map(address)
        wasm.query(address(queries), heads, group, choosers, r.d, r.D, address(r.signs), ...out)
      }
    },
    coarseSigns(jobs) {
      for (const { summary: s, heads, choosers, count, t, normWeighted, scores, stride } of jobs) {
        const norms = normWeighted ? address(s.norms) : 0
        wasm.coarseSigns(
          address(s.signs),
          s.cap,
          s.D,
          heads,
          choosers,
          count,
          address(t),
          norms,
          address(scores),
          stride,
        )
      }
    },
    coarseCollision(jobs) {
      for (const { summary: s, heads, choosers, count, y, rho, scores, stride } of jobs) {
        const plane = [address(s.signs), s.cap, s.D, address(s.counts)]
        wasm.coarseCollision(...plane, heads, choosers, count, address(y), rho, address(scores), stride)
      }
    },
    select(jobs) {
      for (const { scores, stride, heads, count, candidates, lo, hi, step, ids } of jobs)
        wasm.select(address(scores), stride, heads, count, candidates, lo, hi, step, address(ids))
    },
    rerank(jobs) {
      for (const { source, heads, choosers, ids, count, estimates } of jobs) {
        const rest = [heads, choosers, address(ids), count, address(estimates)]
        if ('codes' in source) {
          const { codes: s, y, scales } = source
          const codes = [s.signs, s.magnitudes, s.weights, s.scales].map(address)
          wasm.rerankCodes(s.cap, s.D, ...codes, address(y), address(scales), ...rest)
        } else {
          const { rows, base, chosen, scale } = source
          wasm.rerankRows(...rowsArgs(rows), rows.d, base, address(chosen), scale, ...rest)
        }
      }
    },
    topk(jobs) {
      for (const { values, ids, heads, count, k, topIds, topValues } of jobs)
        wasm.topk(address(values), address(ids), heads, count, k, address(topIds), address(topValues))
    },
    attend(jobs) {
      for (const { queries, keys, values, heads, group, before, after, ids, k, base, scale, parts, partials } of jobs) {
        const rows = [...rowsArgs(keys), ...rowsArgs(values), keys.d]
        const ranges = [...before, ...after, address(ids), k, base]
        wasm.attend(address(queries), ...rows, heads, group, ...ranges, scale, parts, address(partials))
      }
    },
    merge(jobs) {
      for (const { partials, parts, queryHeads, d, output, lse } of jobs)
        wasm.merge(address(partials), parts, queryHeads, d, address(output), address(lse))
    },
    dense(jobs) {
      for (const job of jobs) {
        const { queries, tokens, first, length = first + tokens, keys, values, heads, group, scale, output, lse } = job
        const rows = [...rowsArgs(keys), ...rowsArgs(values), keys.d]
        wasm.dense(address(queries), tokens, first, length, ...rows, heads, group, scale, address(output), address(lse))
      }
    },
    store(jobs) {
      for (const { tokens, dtype, heads, count, rows, at, refused } of jobs) {
        const given = [address(tokens), DTYPES[dtype], heads, count, rows.d]
        wasm.store(...given, ...rowsArgs(rows), at, address(refused))
      }
    },
  }
}
