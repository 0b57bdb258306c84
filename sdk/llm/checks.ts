import { describe, ParisError } from '../errors.ts'

/** @throws ParisError `bad_prompt` where one is no token of the vocabulary */
export function checkIds(ids: readonly number[], vocabulary: number, where: string): readonly number[] {
  const at = Array.isArray(ids) ? ids.findIndex((id) => !Number.isInteger(id) || id < 0 || id >= vocabulary) : 0
  if (at < 0) return ids
  throw new ParisError('bad_prompt', {
    where: `${where}(ids)`,
    got: Array.isArray(ids) ? `${describe(ids[at])} at ${at}` : describe(ids),
    want: `an array of token ids below ${vocabulary}`,
    fix: "Encode the text with this model's own tokenizer.",
  })
}

/**
 * A number of tokens that a caller may leave out.
 * @param usual what it is then
 * @throws ParisError `bad_config` unless it is left out or a whole number of at least 1
 */
export function checkCount(count: number | undefined, usual: number, where: string): number | undefined {
  if (count === undefined || (Number.isInteger(count) && count >= 1)) return count
  throw new ParisError('bad_config', {
    where,
    got: describe(count),
    want: 'a whole number of at least 1',
    fix: `Leave it out for ${usual}.`,
  })
}

/** The refusal of a call that leaves nothing to put through the model. */
export function emptyPrompt(where: string): ParisError {
  return new ParisError('bad_prompt', {
    where,
    got: 'no tokens',
    want: 'at least one',
    fix: 'Give a prompt that is not empty.',
  })
}
