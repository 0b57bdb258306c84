import type { SessionState } from './state.ts'

/** See `Session.undo`. What the first append of all opened is closed again, so that the store is open as it was. */
export function undoAppends(state: SessionState, layer: number): () => Promise<void> {
  const opened = state.cache !== undefined
  const calls = { ...state.calls }
  const { length, maxKey, loose } = state.cache?.layer(layer) ?? { length: 0, maxKey: 0, loose: false }
  return () =>
    state.run('session.undo', async () => {
      if (!opened) await state.unopen()
      await state.cache?.truncate(layer, length)
      if (state.cache) Object.assign(state.cache.layer(layer), { maxKey, loose })
      Object.assign(state.calls, calls)
    })
}
