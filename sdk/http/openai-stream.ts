import { ParisError } from '../errors.ts'
import { orFired } from './call.ts'

/** Milliseconds without an event after which a comment keeps the connection alive, as through a long prompt. */
const BEAT = 15_000

/** What becomes of a stream. */
export interface EventHooks {
  /** Fires when the answer is to end: nothing is written behind it. */
  readonly signal: AbortSignal
  /** Called when the client closes the stream. */
  readonly leave: () => void
  /** Is given the response before the first event. */
  readonly answer: (response: Response) => void
  /** The last event of a stream that fails while somebody reads it. */
  readonly failure: (error: unknown) => object
}

/**
 * Answers with server-sent events as they come, at the pace of the reader, `[DONE]` behind the last one.
 * @throws what the events throw, once the stream has told it
 */
export async function streamEvents(events: AsyncIterable<object>, hooks: EventHooks): Promise<void> {
  const { signal, leave, answer, failure } = hooks
  const { readable, writable } = new TransformStream<Uint8Array, Uint8Array>()
  const writer = writable.getWriter()
  const encoder = new TextEncoder()
  writer.closed.catch(leave)
  const write = (text: string) => writer.write(encoder.encode(`${text}\n\n`))
  const headers = { 'content-type': 'text/event-stream', 'cache-control': 'no-store', 'x-accel-buffering': 'no' }
  answer(new Response(readable, { headers }))
  let beat = setTimeout(comment, BEAT)
  try {
    for await (const event of events) {
      await orFired(signal, write(`data: ${JSON.stringify(event)}`))
      clearTimeout(beat)
      beat = setTimeout(comment, BEAT)
    }
    await orFired(signal, write('data: [DONE]'))
    await orFired(signal, writer.close())
  } catch (error) {
    // Not awaited: a reader that has stopped reading would hold the cache.
    write(`data: ${JSON.stringify(failure(reasonOf(error, signal)))}`).catch(() => {})
    writer.close().catch(() => {})
    throw error
  } finally {
    clearTimeout(beat)
  }

  function comment(): void {
    write(':').catch(() => {})
    beat = setTimeout(comment, BEAT)
  }
}

/** What the SDK tells as aborted is told by its reason, as the deadline. */
function reasonOf(error: unknown, { reason }: AbortSignal): unknown {
  const aborted = error instanceof ParisError && error.code === 'aborted'
  return aborted && reason instanceof ParisError ? reason : error
}
