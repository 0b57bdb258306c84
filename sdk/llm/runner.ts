import { ParisError } from '../errors.ts'
import type { Session } from '../session/session.ts'

/** Runs tokens through a decoder; one call at a time. */
export interface Runner {
  /**
   * Further tokens of one session, which attend exactly and causally.
   * @param first position of the first of them
   * @returns logits [V] of the last one where they are wanted
   */
  prompt(
    session: Session,
    ids: readonly number[],
    first: number,
    options: { logits: boolean; signal?: AbortSignal },
  ): Promise<Float32Array | undefined>
  /**
   * One token each of several sessions, which attend as their policies say.
   * @param options ahead: the same sessions will decode on, so their next step may be prepared
   * @returns logits [V] of each
   */
  step(
    sessions: readonly Session[],
    ids: readonly number[],
    positions: readonly number[],
    options: { ahead: boolean; signal?: AbortSignal },
  ): Promise<Float32Array[]>
  /** Drops what was prepared: sessions are as their last step left them. */
  settle(): Promise<void>
  dispose(): Promise<void>
}

/**
 * Takes a session back to a length. One that cannot be is disposed of, as nobody knows any more what it holds, unless its
 * device is lost: that refuses every further call by itself. Never throws.
 */
export async function takeBack(session: Session, length: number): Promise<void> {
  const longest = Math.max(...session.stats().layers.map((layer) => layer.length))
  if (session.disposed || longest <= length) return
  await session.truncate(length).catch(async (error) => {
    if (!(error instanceof ParisError && error.code === 'device_lost')) await session.dispose().catch(() => {})
  })
}

/** u32 bytes of token ids. */
export function idBytes(ids: readonly number[]): Uint8Array<ArrayBuffer> {
  return new Uint8Array(Uint32Array.from(ids).buffer)
}

/** [rows, V] as its rows. */
export function rowsOf(logits: Float32Array, rows: number): Float32Array[] {
  const size = logits.length / rows
  return Array.from({ length: rows }, (_, i) => logits.subarray(i * size, (i + 1) * size))
}
