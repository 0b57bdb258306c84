import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { StopStrings } from '../../sdk/llm/stop.ts'
import { TextStream } from '../../sdk/llm/text-stream.ts'
import { Tokenizer } from '../../sdk/llm/tokenizer.ts'
import { refused } from '../support/sessions.ts'
import { byteTokenizer, EMPTY } from './byte-tokenizer.ts'

describe('stop strings', () => {
  /** Pushes pieces; what was told, piece by piece and at the end. */
  function told(stops: readonly string[], pieces: readonly string[]) {
    const watch = new StopStrings(stops)
    const parts = pieces.map((piece) => watch.push(piece))
    return { parts, text: parts.join('') + watch.end(), stopped: watch.stopped }
  }

  it('are found across token borders, and nothing of them is told', () => {
    expect(told(['END'], ['ab E', 'N', 'D cd'])).toEqual({ parts: ['ab ', '', ''], text: 'ab ', stopped: true })
    expect(told(['aab'], ['aa', 'a', 'b'])).toEqual({ parts: ['', 'a', ''], text: 'a', stopped: true })
  })

  it('are let go where they do not come', () => {
    expect(told(['END'], ['E', 'N', 'E'])).toEqual({ parts: ['', '', 'EN'], text: 'ENE', stopped: false })
  })

  it('end at the first of several', () => {
    expect(told(['yz', 'x'], ['a y', 'x'])).toMatchObject({ text: 'a y', stopped: true })
  })

  it('hold however the text is cut', () => {
    const word = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), maxLength: 12 })
    const stop = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 3 })
    fc.assert(
      fc.property(fc.array(word, { maxLength: 8 }), fc.array(stop, { maxLength: 3 }), (pieces, stops) => {
        const whole = pieces.join('')
        // Told as soon as one is complete: the one that ends first wins, of those the one that begins first.
        const ends = stops.map((s) => whole.indexOf(s) + s.length).filter((_, i) => whole.includes(stops[i]))
        const { text, stopped } = told(stops, [...whole])
        expect(stopped).toBe(ends.length > 0)
        if (!stopped) expect(text).toBe(whole)
        else {
          expect(stops.some((s) => text.includes(s))).toBe(false)
          expect(whole.startsWith(text)).toBe(true)
          expect(stops.some((s) => whole.startsWith(text + s))).toBe(true)
        }
      }),
    )
  })
})

describe('text of tokens as they come', () => {
  const tokenizer = byteTokenizer()

  it('is never half a character, and is the whole text in the end', () => {
    const { length } = new TextEncoder().encode('🦊')
    expect(tokenizer.encode('🦊')).toHaveLength(length)
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 30 }), (text) => {
        const stream = new TextStream(tokenizer)
        const parts = tokenizer.encode(text).map((id) => stream.push(id))
        for (const part of parts) expect(part.includes('�')).toBe(text.includes('�') && part.includes('�'))
        expect(parts.join('') + stream.end()).toBe(text)
      }),
    )
  })

  it('tells a character that stays broken at the end', () => {
    const stream = new TextStream(tokenizer)
    const [first] = tokenizer.encode('🦊')
    expect(stream.push(first)).toBe('')
    expect(stream.end()).toBe('�')
  })
})

describe('tokenizer', () => {
  const json = { model: { type: 'WordLevel', vocab: { a: 0, b: 1 } }, ...EMPTY }

  it('decodes ids that it lacks as nothing', () => {
    expect(Tokenizer.make(json).decode([0, 7, 1])).toBe('a b')
    expect(Tokenizer.make(json).decode([7])).toBe('')
  })

  it('renders chats', async () => {
    const chat_template =
      '{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ bos_token }}{% endif %}'
    const made = Tokenizer.make(json, { chat_template, bos_token: { content: 'b' } })
    expect(made.chat?.render([{ role: 'user', content: 'a' }])).toBe('[user]ab')
    const raising = Tokenizer.make(json, { chat_template: "{{ raise_exception('system comes first') }}" })
    expect((await refused(() => raising.encodeChat([]), 'bad_prompt')).got).toContain('system comes first')
    await refused(() => Tokenizer.make(json).encodeChat([]), 'bad_prompt')
    const broken = await refused(() => Tokenizer.make(json, { chat_template: '{% for %}' }), 'bad_model')
    expect(broken.where).toBe('tokenizer_config.json')
  })

  it.each([
    ['no model', { ...EMPTY }],
    ['no vocabulary', { model: { type: 'WordLevel' }, ...EMPTY }],
    ['an empty vocabulary', { model: { type: 'WordLevel', vocab: {} }, ...EMPTY }],
    ['an unknown kind', { model: { type: 'Oracle', vocab: { a: 0 } }, ...EMPTY }],
    ['missing parts', { model: { type: 'WordLevel', vocab: { a: 0 } } }],
  ])('with %s is refused', async (_, bad) => {
    expect((await refused(() => Tokenizer.make(bad), 'bad_model')).where).toBe('tokenizer.json')
  })
})
