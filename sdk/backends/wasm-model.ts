import type { Buf, Kernels } from '../backend.ts'
import type { Dtype } from '../dtype.ts'
import { requireFusible } from '../kernels/linear.ts'
import type { RmsNorm } from '../kernels/norm.ts'
import { address, type LinearMemory } from './wasm-memory.ts'

/** The verbs of a model, one exported function each. See `assembly/`. */
export type ModelExports = {
  [name in 'lookup' | 'norm' | 'rope' | 'linear' | 'gate']: (...args: number[]) => void
}

/** Element types as the kernels number them. */
export const DTYPES: Record<Dtype, number> = { f32: 0, f16: 1, bf16: 2 }

/**
 * A batch into calls, a job into numbers, in the order of the exported function's parameters. Fused forms are calls one
 * after the other, with what lies between them in memory of their own.
 */
export function modelKernels(wasm: ModelExports, memory: LinearMemory): Pick<Kernels, keyof ModelExports> {
  const beside = (label: string, floats: number, body: (at: number) => void) => {
    const buffers = memory.alloc([{ label, bytes: floats * 4 }])
    try {
      body(address(buffers[0]))
    } finally {
      memory.free(buffers)
    }
  }
  /** The input as it is, or its rows normalized. */
  const rowsOf = (input: Buf, rows: number, width: number, norm: RmsNorm | undefined, body: (at: number) => void) => {
    if (!norm) return body(address(input))
    beside('normalized rows', rows * width, (at) => {
      wasm.norm(address(input), rows, width, address(norm.weight), norm.epsilon, at)
      body(at)
    })
  }
  return {
    lookup(jobs) {
      for (const { ids, tokens, table, dtype, rows, width, output } of jobs)
        wasm.lookup(address(ids), tokens, address(table), DTYPES[dtype], rows, width, address(output))
    },
    norm(jobs) {
      for (const { input, rows, width, weight, epsilon, output } of jobs)
        wasm.norm(address(input), rows, width, address(weight), epsilon, address(output))
    },
    rope(jobs) {
      for (const { input, outer, inner, d, output, table, norm, tokensAxis } of jobs)
        rowsOf(input, outer * inner, d, norm, (at) => {
          wasm.rope(at, outer, inner, d, address(output), address(table), Number(tokensAxis === 'outer'))
        })
    },
    linear(jobs) {
      for (const job of jobs) requireFusible(job)
      for (const { input, tokens, weights, dtype, inputs, outputs, norm, gated, bias, add, output } of jobs)
        rowsOf(input, tokens, inputs, norm, (at) => {
          const shape = [DTYPES[dtype], inputs, outputs]
          wasm.linear(at, tokens, address(weights), ...shape, address(bias), Number(add), address(output))
          if (!gated) return
          const count = tokens * outputs
          beside('gated', count, (up) => {
            wasm.linear(at, tokens, address(gated), ...shape, 0, 0, up)
            wasm.gate(address(output), up, count, address(output))
          })
        })
    },
    gate(jobs) {
      for (const { gate, up, count, output } of jobs) wasm.gate(address(gate), address(up), count, address(output))
    },
  }
}
