import { Tokenizer } from '../../sdk/llm/tokenizer.ts'

/** Parts that a tokenizer.json names and that do nothing. */
export const EMPTY = { added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null }

/** A byte-level tokenizer without merges: one token a byte of UTF-8, as large vocabularies fall back to. */
export function byteTokenizer(): Tokenizer {
  // The bytes that print stand for themselves; the others for the characters from 256 on, in order.
  const prints = (b: number) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174
  let next = 256
  const vocab: Record<string, number> = {}
  for (let b = 0; b < 256; b++) vocab[String.fromCodePoint(prints(b) ? b : next++)] = b
  return Tokenizer.make({
    ...EMPTY,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: { type: 'BPE', vocab, merges: [], unk_token: null, byte_fallback: false },
  })
}
