import { checkRoom } from '../cache/room.ts'
import { describe, ParisError } from '../errors.ts'
import type { SessionState } from './state.ts'

/** See `Session.reserve`. Inside the queue. */
export async function reserveRoom(state: SessionState, tokens: number): Promise<void> {
  const where = 'session.reserve'
  if (!Number.isInteger(tokens) || tokens < 0) {
    const parts = {
      where: `${where}(tokens)`,
      got: describe(tokens),
      want: 'a whole number',
      fix: 'Say how many come.',
    }
    throw new ParisError('bad_length', parts)
  }
  const lengths = state.lengths()
  for (const length of lengths) checkRoom(length, tokens, state.config.capacity, where)
  for (const [index, length] of lengths.entries()) {
    await state.cache?.mend(index)
    await state.cache?.layer(index).offload?.makeRoom(length, tokens)
  }
}
