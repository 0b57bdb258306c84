import type { IncomingMessage } from 'node:http'
import type { BodySource } from '../sdk/http/options.ts'

/** The body as Node's own stream gives it: a web stream about it takes longer than a decode step's other work on it. */
export function nodeBody(env: unknown): BodySource | undefined {
  const { incoming } = env as { readonly incoming?: IncomingMessage }
  // What others have begun to read, or what has ended already, the request itself knows best.
  if (!incoming || incoming.readableDidRead || incoming.destroyed) return undefined
  return (take, signal) =>
    new Promise<void>((resolve, reject) => {
      const settle = (done: () => void) => {
        incoming.off('data', onData).off('end', onEnd).off('error', onError).off('close', onClose)
        signal.removeEventListener('abort', onAbort)
        done()
      }
      const fail = (error: unknown) =>
        settle(() => {
          incoming.pause()
          reject(error)
        })
      const onData = (chunk: Uint8Array<ArrayBuffer>) => {
        try {
          take(chunk)
        } catch (error) {
          fail(error)
        }
      }
      const onEnd = () => settle(resolve)
      const onError = (error: unknown) => fail(error)
      const onClose = () => fail(new Error('the connection was closed'))
      const onAbort = () => fail(signal.reason)
      incoming.on('data', onData).on('end', onEnd).on('error', onError).on('close', onClose)
      signal.addEventListener('abort', onAbort)
      if (signal.aborted) onAbort()
    })
}
