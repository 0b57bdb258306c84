import type { SessionOptions } from '../config.ts'
import { checkTensor, type Tensor, type TensorInput } from '../input.ts'
import type { KeysValues } from '../session/append.ts'
import type { AttendResult } from '../session/steps.ts'
import { badBody } from './problem.ts'
import { type Frame, type OutTensor, parseAnswer } from './tensors.ts'

/** The axes of a session that its tensors have. */
export type Axes = Pick<SessionOptions, 'queryHeads' | 'kvHeads' | 'headDim'>

/** Keys and values [H, T, d]. @throws ParisError `bad_dtype`, `bad_shape`, `not_finite` */
export function checkRows(axes: Axes, input: KeysValues, where: string): { keys: Tensor; values: Tensor } {
  const { kvHeads: heads, headDim: d } = axes
  const keys = checkTensor(input?.keys, { where, name: 'keys', heads, d })
  return { keys, values: checkTensor(input?.values, { where, name: 'values', heads, d, tokens: keys.tokens }) }
}

/** Queries [Hq, tokens, d]. @throws ParisError as `checkRows` */
export function checkHeads(axes: Axes, queries: TensorInput, tokens: number, where: string): Tensor {
  return checkTensor(queries, { where, name: 'queries', heads: axes.queryHeads, d: axes.headDim, tokens })
}

/** Tokens [from, to) of a tensor, [heads, to − from, d], as a frame carries them. */
export function part(name: string, tensor: Tensor, from: number, to: number): OutTensor {
  const { data, heads, tokens, d } = tensor
  const count = to - from
  let cut = data
  if (count !== tokens) {
    cut = data instanceof Float32Array ? new Float32Array(heads * count * d) : new Uint16Array(heads * count * d)
    for (let h = 0; h < heads; h++)
      cut.set(data.subarray((h * tokens + from) * d, (h * tokens + to) * d), h * count * d)
  }
  return { name, shape: [heads, count, d], data: { dtype: tensor.dtype, data: cut } as TensorInput }
}

/** Queries of one token, [Hq, d]. */
export function single(tensor: Tensor): OutTensor {
  return { ...part('queries', tensor, 0, 1), shape: [tensor.heads, tensor.d] }
}

/** Bytes that one token takes on the wire. */
export function tokenBytes(tensors: readonly Tensor[]): number {
  return tensors.reduce((sum, { heads, d, dtype }) => sum + heads * d * (dtype === 'f32' ? 4 : 2), 0)
}

/** What a server answers. */
export type AnswerFrame = Frame<TensorInput | Uint32Array>

/** The frame of an answer. @throws ParisError `bad_body` */
export async function frameOf(response: Response): Promise<AnswerFrame> {
  return parseAnswer(new Uint8Array(await response.arrayBuffer()))
}

/** output and lse of an answer. @throws ParisError `bad_body` */
export function attendResult(frame: AnswerFrame): AttendResult {
  return { output: floats(frame, 'output'), lse: floats(frame, 'lse') }
}

/** @throws ParisError `bad_body` */
export function floats(frame: AnswerFrame, name: string): Float32Array {
  const input = frame.tensors.get(name)?.input
  if (input instanceof Float32Array) return input
  throw badBody(`an answer without ${name}`, 'F32', 'Ask a server of this version.')
}

/** @throws ParisError `bad_body` */
export function whole(frame: AnswerFrame, name: string): Uint32Array {
  const input = frame.tensors.get(name)?.input
  if (input instanceof Uint32Array) return input
  throw badBody(`an answer without ${name}`, 'U32', 'Ask a server of this version.')
}
