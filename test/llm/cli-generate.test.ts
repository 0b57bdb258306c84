import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { generateCommand } from '../../adapters/cli-generate.ts'
import { refused } from '../support/sessions.ts'
import { fixturePath, goldenOf, needlePath } from './models.ts'

describe('pariskv generate', () => {
  const { prompt, greedy_text } = goldenOf<{ prompt: string; greedy_text: string }>(needlePath)
  let [out, err] = ['', '']
  beforeEach(() => {
    out = ''
    err = ''
    vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
      out += text
      return true
    })
    vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
      err += text
      return true
    })
    vi.spyOn(console, 'error').mockImplementation((text) => {
      err += `${text}\n`
    })
    vi.spyOn(console, 'log').mockImplementation((text) => {
      out += `${text}\n`
    })
  })
  afterEach(() => vi.restoreAllMocks())

  const run = (...argv: string[]) => generateCommand(['--model', needlePath, '--device', 'wasm', ...argv])
  const text = prompt.replace('<bos> ', '')

  it('writes the text on stdout, and on stderr how it went', async () => {
    const [audited, code] = [['--dense-below', '0', '--audit-every', '2'], await run('--help')]
    expect([code, out.startsWith('Usage: pariskv generate')]).toEqual([0, true])
    out = ''
    expect(await run('--prompt', text, '--max-tokens', '8', ...audited)).toBe(0)
    expect(out.trim()).toBe(greedy_text)
    for (const told of ['loading', 'prompt ', '100%', '596 tokens', 'text     8 tokens', 'tokens/s', 'MiB'])
      expect(err).toContain(told)
    expect(err).toMatch(/recall {3}0\.\d{3} of the exact top keys, 14 audits/)
  })

  it('attends fully, and stops at a stop string', async () => {
    expect(await run('--prompt', text, '--max-tokens', '30', '--attention', 'full', '--stop', ' the magic')).toBe(0)
    expect(out).toBe(' 4 4 6 5 .\n')
    expect(err).toContain('not audited: 0 tokens in the retrieval zone')
  })

  it('draws the same text for a seed', async () => {
    const options = ['--prompt', 'the amber acorn', '--max-tokens', '12', '--temperature', '1', '--top-k', '40']
    const texts: string[] = []
    for (const seed of ['1', '1', '2']) {
      out = ''
      await run(...options, '--seed', seed)
      texts.push(out)
    }
    expect(texts[0]).toBe(texts[1])
    expect(texts[0]).not.toBe(texts[2])
  })

  it.each<[string, string[], Parameters<typeof refused>[1], string]>([
    ['an empty prompt', ['--prompt', ''], 'bad_prompt', 'prompt'],
    ['a missing prompt', [], 'bad_config', '--prompt'],
    ['a prompt beyond the capacity', ['--prompt', text, '--capacity', '100'], 'capacity', 'prompt'],
    ['no number', ['--prompt', 'a', '--temperature', 'warm'], 'bad_config', '--temperature'],
    ['another attention', ['--prompt', 'a', '--attention', 'some'], 'bad_config', 'attention'],
    ['a chat without a template', ['--prompt', 'the', '--chat'], 'bad_prompt', 'messages'],
    ['a folder that is none', ['--prompt', 'a', '--model', '/nowhere'], 'bad_model', '/nowhere'],
    [
      'a folder without a tokenizer',
      ['--prompt', 'a', '--model', fixturePath('qwen2-bias-f32')],
      'bad_prompt',
      'generate',
    ],
  ])('%s is refused', async (_, argv, code, told) => {
    expect((await refused(run(...argv), code)).where).toContain(told)
  })

  it.each([
    ['--max-tokens', 'some', '--max-tokens'],
    ['--temperature', 'warm', '--temperature'],
  ])('%s %s is refused with its own help', async (option, value, where) => {
    const error = await refused(run('--prompt', 'a', option, value), 'bad_config')
    expect([error.where, error.fix]).toEqual([where, 'See pariskv generate --help.'])
  })

  it.each([
    ['EPIPE', 'ends it quietly'],
    ['EIO', 'is thrown'],
  ])('%s on stdout %s', async (code) => {
    let writes = 0
    vi.spyOn(process.stdout, 'write').mockImplementation(() => {
      if (++writes === 2) process.stdout.emit('error', Object.assign(new Error(`write ${code}`), { code }))
      return true
    })
    const listeners = process.stdout.listenerCount('error')
    const running = run('--prompt', 'the amber acorn', '--max-tokens', '40', '--ignore-eos')
    if (code === 'EPIPE') expect(await running).toBe(141)
    else await expect(running).rejects.toThrow('write EIO')
    expect(writes).toBe(2)
    expect(err).not.toContain('stopped')
    expect(process.stdout.listenerCount('error')).toBe(listeners)
  })

  it('options that it does not know are refused by name', async () => {
    await expect(run('--promt', 'a')).rejects.toThrow('--promt')
  })
})
