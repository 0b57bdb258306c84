import { checkRoom } from '../cache/room.ts'
import { describe, ParisError } from '../errors.ts'
import type { SessionState } from './state.ts'

/** See `Session.reserve`. Inside the queue. @param layers those that make room; by default all */
export async function reserveRoom(
  state: SessionState,
  tokens: number,
  where = 'session.reserve',
  layers: Iterable<number> = state.lengths().keys(),
): Promise<void> {
  if (!Number.isInteger(tokens) || tokens < 0) {
    const parts = {
      where: `${where}(tokens)`,
      got: describe(tokens),
      want: 'a whole number',
      fix: 'Say how many come.',
    }
    throw new ParisError('bad_length', parts)
  }
  const wanted = [...layers]
  for (const index of wanted) checkRoom(state.length(index), tokens, state.config.capacity, where)
  for (const index of wanted) {
    await state.cache?.mend(index)
    await state.cache?.layer(index).offload?.makeRoom(state.length(index), tokens)
  }
}
