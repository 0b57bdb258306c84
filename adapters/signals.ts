import process from 'node:process'

/**
 * Calls `close` at the first SIGTERM or SIGINT and ends the process at the second; on Node, Bun and Deno.
 * @returns takes the handlers away again
 */
export function onSignals(close: () => Promise<void>): () => void {
  let seen = false
  const handler = (signal: NodeJS.Signals) => {
    if (seen) process.exit(128 + (signal === 'SIGINT' ? 2 : 15))
    seen = true
    void close()
  }
  process.on('SIGTERM', handler).on('SIGINT', handler)
  return () => void process.off('SIGTERM', handler).off('SIGINT', handler)
}
