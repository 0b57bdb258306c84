import { Tokenizer as Library } from '@huggingface/tokenizers'
import { describe, ParisError } from '../errors.ts'
import { type ChatMessage, ChatTemplate } from './chat.ts'
import { badModel, type ModelSource, readJson, readJsonIfThere } from './source.ts'

const KINDS = ['BPE', 'WordPiece', 'Unigram', 'WordLevel']

/** Text to token ids and back, as tokenizer.json says. */
export class Tokenizer {
  /** Undefined where the folder brings no chat template. */
  readonly chat: ChatTemplate | undefined

  private constructor(
    private readonly library: Library,
    chat: ChatTemplate | undefined,
  ) {
    this.chat = chat
  }

  /**
   * @param json tokenizer.json
   * @param settings tokenizer_config.json
   * @param template the text of chat_template.jinja, which wins over a template in the settings
   * @throws ParisError `bad_model` for a tokenizer without a vocabulary or of an unknown kind
   */
  static make(json: Record<string, unknown>, settings: Record<string, unknown> = {}, template?: string): Tokenizer {
    const file = 'tokenizer.json'
    const { vocab: vocabulary, type } = (json.model ?? {}) as { vocab?: unknown; type?: unknown }
    if (typeof vocabulary !== 'object' || vocabulary === null || Object.keys(vocabulary).length === 0)
      throw badModel(file, 'no vocabulary', 'model.vocab', 'Take tokenizer.json from its source again.')
    if (type !== undefined && !KINDS.includes(type as string))
      throw badModel(file, `a model of type ${describe(type)}`, KINDS.join(', '), 'Take a tokenizer of a known kind.')
    let library: Library
    try {
      library = new Library({ added_tokens: [], ...json }, settings)
    } catch (cause) {
      const want = 'a tokenizer of a known kind'
      throw badModel(file, String((cause as Error)?.message ?? cause), want, 'Save it with a newer library.', cause)
    }
    return new Tokenizer(library, ChatTemplate.from(settings, template))
  }

  /**
   * @param special whether the tokens that begin every text are added
   * @throws ParisError `bad_prompt` for what is no string or holds what the vocabulary lacks
   */
  encode(text: string, { special = true }: { special?: boolean } = {}): number[] {
    if (typeof text !== 'string')
      throw new ParisError('bad_prompt', {
        where: 'tokenizer.encode(text)',
        got: describe(text),
        want: 'a string',
        fix: 'Give text, or token ids where the model is asked.',
      })
    if (text === '' && !special) return []
    const { ids, tokens }: { ids: number[]; tokens: string[] } = this.library.encode(text, {
      add_special_tokens: special,
    })
    const at = ids.findIndex((id) => !Number.isInteger(id))
    if (at < 0) return ids
    throw new ParisError('bad_prompt', {
      where: 'tokenizer.encode(text)',
      got: `${describe(tokens[at])}, which the vocabulary lacks`,
      want: 'text that the vocabulary covers',
      fix: 'Leave it out: this vocabulary has no token for what is unknown.',
    })
  }

  /** Text of some tokens; ids that the vocabulary lacks give nothing. @param special whether special tokens show */
  decode(ids: readonly number[], { special = false }: { special?: boolean } = {}): string {
    const known = ids.filter((id) => this.library.id_to_token(id) !== undefined)
    if (known.length === 0) return ''
    return this.library.decode(known, { skip_special_tokens: !special, clean_up_tokenization_spaces: false })
  }

  /** Ids of a chat, up to where the answer begins. @throws ParisError `bad_prompt` where the model has no template */
  encodeChat(messages: readonly ChatMessage[]): number[] {
    if (this.chat) return this.encode(this.chat.render(messages), { special: false })
    throw new ParisError('bad_prompt', {
      where: 'tokenizer.encodeChat(messages)',
      got: 'messages for a model without a chat template',
      want: 'a prompt',
      fix: 'Give prompt, or add chat_template.jinja to the folder.',
    })
  }
}

/**
 * The tokenizer of a folder; undefined where it has no tokenizer.json.
 * @throws ParisError `bad_model`
 */
export async function loadTokenizer(source: ModelSource): Promise<Tokenizer | undefined> {
  const files = await source.list()
  if (!files.includes('tokenizer.json')) return undefined
  const json = await readJson(source, 'tokenizer.json')
  const settings = await readJsonIfThere(source, 'tokenizer_config.json', files)
  const template = files.includes('chat_template.jinja')
    ? new TextDecoder().decode(await source.read('chat_template.jinja'))
    : undefined
  return Tokenizer.make(json, settings, template)
}
