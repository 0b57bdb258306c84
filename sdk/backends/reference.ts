import type { AllocRequest, Backend, Buf, Kernels } from '../backend.ts'
import { Bytes } from '../bytes.ts'
import { ParisError } from '../errors.ts'
import { attend } from '../kernels/attend.ts'
import { coarseCollision } from '../kernels/coarse-collision.ts'
import { coarseSigns } from '../kernels/coarse-signs.ts'
import { dense } from '../kernels/dense.ts'
import { encode } from '../kernels/encode.ts'
import { gate } from '../kernels/gate.ts'
import { linear } from '../kernels/linear.ts'
import { lookup } from '../kernels/lookup.ts'
import { merge } from '../kernels/merge.ts'
import { norm } from '../kernels/norm.ts'
import { query } from '../kernels/query.ts'
import { rerank } from '../kernels/rerank.ts'
import { rope } from '../kernels/rope.ts'
import { rotate } from '../kernels/rotate.ts'
import { select } from '../kernels/select.ts'
import { store } from '../kernels/store.ts'
import { topk } from '../kernels/topk.ts'

/** Runs a single-job kernel over a batch. The buffers are this backend's own, so they are `Bytes`. */
function each<J>(kernel: (job: J) => void): (jobs: readonly unknown[]) => void {
  return (jobs) => {
    for (const job of jobs) kernel(job as J)
  }
}

const kernels: Kernels = {
  rotate: each(rotate),
  encode: each(encode),
  query: each(query),
  coarseSigns: each(coarseSigns),
  coarseCollision: each(coarseCollision),
  select: each(select),
  rerank: each(rerank),
  topk: each(topk),
  attend: each(attend),
  merge: each(merge),
  dense: each(dense),
  store: each(store),
  lookup: each(lookup),
  norm: each(norm),
  rope: each(rope),
  linear: each(linear),
  gate: each(gate),
}

/** Plain TypeScript with f64 sums: the oracle of every test, and a working backend anywhere. */
export function createReferenceBackend(): Backend {
  const live = new Set<Buf>()
  return {
    ...kernels,
    name: 'reference',
    description: 'plain TypeScript, one thread, f64 sums',
    layout: { block: 1, align: 1 },
    async alloc(requests) {
      const buffers = requests.map(allocate)
      for (const buffer of buffers) live.add(buffer)
      return buffers
    },
    free(buffers) {
      for (const buffer of buffers) live.delete(buffer)
    },
    write(buf, offset, data) {
      ;(buf as Bytes).u8.set(data, offset)
    },
    copy(src, srcOffset, dst, dstOffset, bytes) {
      ;(dst as Bytes).u8.set((src as Bytes).u8.subarray(srcOffset, srcOffset + bytes), dstOffset)
    },
    clear(buf) {
      ;(buf as Bytes).u8.fill(0)
    },
    async read(buf, offset, bytes) {
      return (buf as Bytes).u8.slice(offset, offset + bytes)
    },
    async readAll(parts) {
      return parts.map(({ buf, offset, bytes }) => (buf as Bytes).u8.slice(offset, offset + bytes))
    },
    parts: () => 1,
    allocated: () => [...live].reduce((sum, buffer) => sum + buffer.bytes, 0),
    dispose: () => live.clear(),
  }
}

function allocate({ label, bytes }: AllocRequest): Bytes {
  try {
    return new Bytes(bytes)
  } catch (cause) {
    throw new ParisError('out_of_memory', {
      where: `reference.alloc(${label})`,
      got: `${bytes} bytes`,
      want: 'no more than this runtime gives one ArrayBuffer',
      fix: 'Lower capacity, layers or heads, or take a 16-bit store.',
      cause,
    })
  }
}
