import { buildFrame, type OutTensor, SAFETENSORS } from './tensors.ts'

/** What a call answers, whatever carries it: JSON, or tensors with scalars beside them. */
export interface Answer {
  readonly status: 200 | 201
  /** Scalars; the body of an answer without tensors. */
  readonly said: Readonly<Record<string, unknown>>
  readonly tensors?: readonly OutTensor[]
  /** Whether an Idempotency-Key brought an earlier answer back. */
  readonly replayed?: boolean
}

/** Bytes that an answer takes, about. */
export function answerBytes({ tensors = [] }: Answer): number {
  return tensors.reduce((sum, { data }) => sum + ('data' in data ? data.data : data).byteLength, 256)
}

/** An answer as a response; scalars beside tensors stand in the frame's `__metadata__`. */
export function answerResponse(answer: Answer): Response {
  const { status, said, tensors, replayed } = answer
  const headers: Record<string, string> = { 'cache-control': 'no-store' }
  if (replayed) headers['idempotent-replayed'] = 'true'
  if (!tensors) return Response.json(said, { status, headers })
  headers['content-type'] = SAFETENSORS
  return new Response(buildFrame(tensors, asTexts(said)), { status, headers })
}

/** Scalars as the strings of `__metadata__`. */
export function asTexts(said: Readonly<Record<string, unknown>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(said).map(([key, value]) => [key, typeof value === 'string' ? value : JSON.stringify(value)]),
  )
}
