import { Bytes } from '../bytes.ts'
import { ParisError } from '../errors.ts'
import { merge } from '../kernels/merge.ts'

/** Attention to a range: output [Hq, d] and lse [Hq] (natural log of Σ exp). */
export interface Partial {
  readonly output: Float32Array
  readonly lse: Float32Array
}

/**
 * One attention out of those to ranges that do not overlap, as `attendRange` and `POST …/partial` give them, from as many
 * hosts as hold the sequence. The order decides only the last bits.
 * @param partials output [Hq, d] and lse [Hq] each, of one shape; an empty range is 0 and −Inf
 * @returns output [Hq, d] and lse [Hq]
 * @throws ParisError `bad_shape`
 */
export function mergePartials(partials: readonly Partial[]): Partial {
  const queryHeads = partials[0]?.lse.length ?? 0
  const d = queryHeads > 0 ? partials[0].output.length / queryHeads : 0
  for (const { output, lse } of partials)
    if (lse.length !== queryHeads || output.length !== queryHeads * d || !Number.isInteger(d))
      throw misshapen(output, lse)
  if (partials.length === 0) throw misshapen(new Float32Array(), new Float32Array())
  const states = new Bytes(partials.length * queryHeads * (d + 2) * 4)
  partials.forEach(({ output, lse }, p) => {
    for (let hq = 0; hq < queryHeads; hq++) {
      const at = (p * queryHeads + hq) * (d + 2)
      // A softmax that is done is a state of weight 1 at its lse.
      states.f32.set(output.subarray(hq * d, (hq + 1) * d), at)
      states.f32[at + d] = lse[hq]
      states.f32[at + d + 1] = lse[hq] === Number.NEGATIVE_INFINITY ? 0 : 1
    }
  })
  const [output, lse] = [new Bytes(queryHeads * d * 4), new Bytes(queryHeads * 4)]
  merge({ partials: states, parts: partials.length, queryHeads, d, output, lse })
  return { output: output.f32, lse: lse.f32 }
}

function misshapen(output: Float32Array, lse: Float32Array): ParisError {
  return new ParisError('bad_shape', {
    where: 'mergePartials',
    got: `output of ${output.length} and lse of ${lse.length} elements`,
    want: 'at least one partial; output [Hq, d] and lse [Hq], the same for all',
    fix: 'Merge the partials of one query over different ranges.',
  })
}
