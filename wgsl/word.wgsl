// How a key's planes are read: 1, 2 or 4 u32 at a time, and Σ_p 2^p |v_p| over four bit planes of one such word.
// With 4 words a carry-save adder sums the planes first: 6 population counts in place of 16, which are four times as
// dear as logic on most GPUs.

//! program word-1
alias Word = u32;
const WORDS = 1u;
fn word_at(word: Word, q: u32) -> u32 { return word; }
fn word_of(a: u32, b: u32, c: u32, d: u32) -> Word { return a; }
fn weighted(v0: Word, v1: Word, v2: Word, v3: Word) -> u32 {
  return countOneBits(v0) + 2u * countOneBits(v1) + 4u * countOneBits(v2) + 8u * countOneBits(v3);
}

//! program word-2
alias Word = vec2<u32>;
const WORDS = 2u;
fn word_at(word: Word, q: u32) -> u32 { return word[q]; }
fn word_of(a: u32, b: u32, c: u32, d: u32) -> Word { return Word(a, b); }
fn weighted(v0: Word, v1: Word, v2: Word, v3: Word) -> u32 {
  let v = countOneBits(v0) + 2u * countOneBits(v1) + 4u * countOneBits(v2) + 8u * countOneBits(v3);
  return v.x + v.y;
}

//! program word-4
alias Word = vec4<u32>;
const WORDS = 4u;
fn word_at(word: Word, q: u32) -> u32 { return word[q]; }
fn word_of(a: u32, b: u32, c: u32, d: u32) -> Word { return Word(a, b, c, d); }
fn odd(a: u32, b: u32, c: u32) -> u32 { return a ^ b ^ c; }
fn carry(a: u32, b: u32, c: u32) -> u32 { return (a & b) | (c & (a | b)); }
fn weighted(v0: Word, v1: Word, v2: Word, v3: Word) -> u32 {
  let s0 = odd(v0.x, v0.y, v0.z);
  let a1 = carry(v0.x, v0.y, v0.z);
  let b1 = s0 & v0.w;
  let s1 = odd(v1.x, v1.y, v1.z);
  let t1 = odd(v1.w, a1, b1);
  let a2 = carry(v1.x, v1.y, v1.z);
  let b2 = carry(v1.w, a1, b1);
  let c2 = s1 & t1;
  let s2 = odd(v2.x, v2.y, v2.z);
  let t2 = odd(v2.w, a2, b2);
  let a3 = carry(v2.x, v2.y, v2.z);
  let b3 = carry(v2.w, a2, b2);
  let c3 = carry(s2, t2, c2);
  let s3 = odd(v3.x, v3.y, v3.z);
  let t3 = odd(v3.w, a3, b3);
  let a4 = carry(v3.x, v3.y, v3.z);
  let b4 = carry(v3.w, a3, b3);
  let c4 = carry(s3, t3, c3);
  return countOneBits(s0 ^ v0.w) + 2u * countOneBits(s1 ^ t1) + 4u * countOneBits(odd(s2, t2, c2))
    + 8u * countOneBits(odd(s3, t3, c3)) + 16u * countOneBits(odd(a4, b4, c4)) + 32u * countOneBits(carry(a4, b4, c4));
}
