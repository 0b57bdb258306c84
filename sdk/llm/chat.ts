import { Template } from '@huggingface/jinja'
import { ParisError } from '../errors.ts'
import { badModel } from './source.ts'

/** One turn of a chat. */
export interface ChatMessage {
  readonly role: string
  readonly content: string
}

/** A chat template and the tokens that it names. */
export class ChatTemplate {
  private constructor(
    private readonly template: Template,
    private readonly names: Record<string, string>,
  ) {}

  /**
   * @param settings tokenizer_config.json: `chat_template` is a text, or a list of which `default` is taken
   * @param own the text of chat_template.jinja
   * @returns undefined where neither has one
   * @throws ParisError `bad_model` where it does not parse
   */
  static from(settings: Record<string, unknown>, own?: string): ChatTemplate | undefined {
    const text = own ?? textOf(settings.chat_template)
    if (text === undefined) return undefined
    const names: Record<string, string> = {}
    for (const name of ['bos_token', 'eos_token', 'pad_token', 'unk_token']) {
      const token = settings[name]
      const content = (token as { content?: unknown } | null | undefined)?.content ?? token
      if (typeof content === 'string') names[name] = content
    }
    try {
      return new ChatTemplate(new Template(text), names)
    } catch (cause) {
      const file = own === undefined ? 'tokenizer_config.json' : 'chat_template.jinja'
      const got = `a chat template that does not parse: ${(cause as Error).message}`
      throw badModel(file, got, 'a Jinja template', 'Take it from its source again, or remove it.', cause)
    }
  }

  /**
   * The text of a chat, up to where the answer begins.
   * @throws ParisError `bad_prompt` where the template refuses the messages
   */
  render(messages: readonly ChatMessage[]): string {
    try {
      return this.template.render({ ...this.names, messages: [...messages], add_generation_prompt: true })
    } catch (cause) {
      throw new ParisError('bad_prompt', {
        where: 'chat template',
        got: `messages that it refuses: ${(cause as Error).message}`,
        want: 'roles in the order that the model knows',
        fix: 'Begin with system or user, then let user and assistant take turns.',
        cause,
      })
    }
  }
}

function textOf(given: unknown): string | undefined {
  if (typeof given === 'string') return given
  if (!Array.isArray(given)) return undefined
  const list = given as { name?: unknown; template?: unknown }[]
  const chosen = list.find(({ name }) => name === 'default') ?? list[0]
  return typeof chosen?.template === 'string' ? chosen.template : undefined
}
