import { ParisError } from '../errors.ts'

/** The largest |v| that a session takes, so that sums over a whole context stay finite in f32. */
export function largestValue(capacity: number): number {
  return 3.4e38 / capacity
}

/** @throws ParisError `capacity`, before anything is written */
export function checkRoom(length: number, tokens: number, capacity: number, where: string): void {
  if (length + tokens <= capacity) return
  throw new ParisError('capacity', {
    where,
    got: `${tokens} tokens on top of ${length}`,
    want: `at most ${capacity} in all`,
    fix: 'Open a session with a larger capacity, or truncate this one; it still holds what it held.',
  })
}
