import { ParisError } from '../errors.ts'
import { Refusal } from './problem.ts'

/**
 * Runs a task with a signal that fires with the client's or at the deadline.
 * @param ms milliseconds it may take
 * @throws ParisError `deadline`, `aborted`, and whatever the task throws
 */
export async function withDeadline<T>(
  ms: number,
  client: AbortSignal | undefined,
  task: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController()
  const leave = () => controller.abort(client?.reason)
  const timer = setTimeout(() => controller.abort(late(ms)), ms)
  client?.addEventListener('abort', leave)
  try {
    if (client?.aborted) leave()
    throwIfFired(controller.signal)
    return await task(controller.signal)
  } catch (error) {
    // What the SDK tells as aborted is told by its reason: the deadline, or the client that left.
    if (error instanceof ParisError && error.code === 'aborted') throwIfFired(controller.signal)
    throw error
  } finally {
    clearTimeout(timer)
    client?.removeEventListener('abort', leave)
  }
}

/** Rejects as soon as the signal fires, whatever becomes of the promise. */
export function orFired<T>(signal: AbortSignal, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const fire = () => reject(signal.reason instanceof ParisError ? signal.reason : gone())
    if (signal.aborted) fire()
    signal.addEventListener('abort', fire)
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', fire))
  })
}

/** @throws ParisError `deadline` or `aborted` */
export function throwIfFired(signal: AbortSignal): void {
  if (signal.aborted) throw signal.reason instanceof ParisError ? signal.reason : gone()
}

function late(ms: number): Refusal {
  return new Refusal(
    'deadline',
    {
      where: 'the request',
      got: `no answer within ${ms} ms`,
      want: 'an answer in time',
      fix: 'It has changed nothing; send less at a time, or wait for Retry-After.',
    },
    { retryAfter: 1 },
  )
}

function gone(): Refusal {
  return new Refusal('aborted', {
    where: 'the request',
    got: 'a client that left',
    want: 'a client that waits',
    fix: 'The session is as it was before the call; call again to retry.',
  })
}
