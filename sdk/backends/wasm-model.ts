import type { Kernels } from '../backend.ts'
import type { Dtype } from '../dtype.ts'
import { address } from './wasm-memory.ts'

/** The verbs of a model, one exported function each. See `assembly/`. */
export type ModelExports = {
  [name in 'lookup' | 'norm' | 'rope' | 'linear' | 'gate']: (...args: number[]) => void
}

/** Element types as the kernels number them. */
export const DTYPES: Record<Dtype, number> = { f32: 0, f16: 1, bf16: 2 }

/** A batch into calls, a job into numbers, in the order of the exported function's parameters. */
export function modelKernels(wasm: ModelExports): Pick<Kernels, keyof ModelExports> {
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
      for (const { input, outer, inner, d, output, table, tokensAxis } of jobs) {
        const angles = address(table)
        wasm.rope(address(input), outer, inner, d, address(output), angles, Number(tokensAxis === 'outer'))
      }
    },
    linear(jobs) {
      for (const { input, tokens, weights, dtype, inputs, outputs, bias, add, output } of jobs) {
        const matrix = [address(weights), DTYPES[dtype], inputs, outputs]
        wasm.linear(address(input), tokens, ...matrix, address(bias), Number(add), address(output))
      }
    },
    gate(jobs) {
      for (const { gate, up, count, output } of jobs) wasm.gate(address(gate), address(up), count, address(output))
    },
  }
}
