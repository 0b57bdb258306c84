import { SOURCES } from './sources.ts'

/** Element types of a storage binding and their bytes. `Word` is what a key's planes and weights are read by. */
const ELEMENTS = {
  u32: 4,
  f32: 4,
  'atomic<u32>': 4,
  'atomic<i32>': 4,
  i32: 4,
  'vec2<u32>': 8,
  'vec4<u32>': 16,
  'vec4<f32>': 16,
  Word: 0,
} as const
type Element = keyof typeof ELEMENTS

/** Jobs that one dispatch can hold: the length of the uniform array. */
export const MAX_JOBS = 16
/** Bytes of the uniform window: 16 jobs of at most 32 words. */
export const JOB_BYTES = MAX_JOBS * 128

/** A compute program: a section of a .wgsl file with what it is bound to. */
export interface Program {
  readonly source: keyof typeof SOURCES
  /** Storage buffers in binding order: `name: element`, read-only unless the name ends in `!`. At most 8. */
  readonly bindings: Readonly<Record<string, Element>>
  /** Words of a job, in order; u32 unless `name: f32`. `at_<binding>`, head0, gy, gx and block0 follow by themselves. */
  readonly fields: readonly string[]
}

/** Constants of a specialization, u32; `INV_SQRT_D` is f32, `LO` i32. */
export type Spec = Readonly<Record<string, number>>

const program = (source: Program['source'], bindings: Program['bindings'], fields: readonly string[]): Program => ({
  source,
  bindings,
  fields,
})
const summary = { sign_words: 'Word', magnitudes: 'Word', weights: 'Word', scales: 'u32' } as const
const linear = { input: 'vec4<f32>', weights: 'vec4<u32>', bias: 'f32' } as const
const linearFields = ['tokens', 'token0', 'inputs', 'outputs', 'biased', 'adds']
const chunked = ['zone', 'stride', 'count', 'chunk']

/** Every program. Grids: x as the comment says, y = heads, z = jobs. */
export const PROGRAMS = {
  // x = ⌈R / (256 / D)⌉
  rotate: program('rotate', { x: 'f32', signs: 'u32', 'y!': 'f32', 'exponents!': 'i32' }, ['rows']),
  // x = 1
  query: program(
    'query',
    { queries: 'f32', signs: 'u32', 'chosen!': 'f32', 'y!': 'f32', 'scales!': 'f32', 't!': 'u32' },
    ['unit: f32'],
  ),
  // x = ⌈(count + at mod 4) / (256 / B)⌉
  encode: program(
    'encode',
    {
      keys: 'vec4<u32>',
      signs: 'u32',
      'planes!': 'u32',
      'magnitudes!': 'u32',
      'weights!': 'u32',
      'scales!': 'u32',
      'counts!': 'atomic<u32>',
    },
    ['cap', 'zone', 'start', 'at', 'count'],
  ),
  // x = ⌈T · d / 8 / 256⌉
  store: program('store', { tokens: 'vec4<u32>', 'rows!': 'vec4<u32>', 'refused!': 'atomic<u32>' }, [
    'cap',
    'at',
    'count',
  ]),
  // x = ⌈count / 256⌉
  'norm-need': program('encode', { keys: 'vec4<u32>', 'need!': 'atomic<i32>' }, ['cap', 'start', 'count']),
  // x = ⌈(at + count) / 1024⌉
  'norm-write': program('encode', { keys: 'vec4<u32>', normExp: 'i32', need: 'i32', 'norms!': 'u32' }, [
    'cap',
    'zone',
    'start',
    'at',
    'count',
  ]),
  // x = 1
  'norm-raise': program('encode', { 'normExp!': 'i32', 'need!': 'i32' }, []),
  // x = chunks of a head, for this and the next four
  'coarse-signs': program(
    'coarse-signs',
    { sign_words: 'Word', t: 'u32', norms: 'u32', 'scores!': 'u32', 'scratch!': 'atomic<u32>' },
    chunked,
  ),
  'coarse-collision': program(
    'coarse-collision',
    { planes: 'u32', table: 'u32', 'scores!': 'u32', 'scratch!': 'atomic<u32>' },
    chunked,
  ),
  'select-histogram': program('select', { scores: 'u32', 'scratch!': 'atomic<u32>' }, ['stride', 'count', 'chunk']),
  'select-count': program('select', { scores: 'u32', 'scratch!': 'u32' }, [
    'stride',
    'count',
    'chunk',
    'candidates',
    'state',
    'blocks',
  ]),
  'select-write': program('select', { scores: 'u32', 'scratch!': 'u32', 'ids!': 'u32' }, [
    'stride',
    'count',
    'chunk',
    'candidates',
    'state',
    'blocks',
  ]),
  // x = Gc · B
  tiers: program('coarse-collision', { y: 'f32', counts: 'u32', 'table!': 'u32' }, [
    'limit0',
    'limit1',
    'limit2',
    'limit3',
    'limit4',
    'limit5',
  ]),
  // x = ⌈C / 256⌉
  'rerank-codes': program('rerank', { ...summary, ids: 'u32', y: 'f32', qscales: 'f32', 'estimates!': 'f32' }, [
    'zone',
    'count',
    'listed',
    'lo',
    'hi',
  ]),
  // x = ⌈C / 16⌉
  'rerank-rows': program('rerank', { keys: 'vec4<u32>', chosen: 'vec4<f32>', ids: 'u32', 'estimates!': 'f32' }, [
    'cap',
    'base',
    'count',
    'listed',
    'scale: f32',
    'lo',
    'hi',
  ]),
  // x = 1
  topk: program('topk', { values: 'f32', ids: 'u32', 'topIds!': 'u32', 'topValues!': 'f32', 'spill!': 'vec2<u32>' }, [
    'count',
    'k',
    'listed',
  ]),
  // x = ⌈K / 256⌉
  'topk-rank': program(
    'topk',
    { values: 'f32', ids: 'u32', spill: 'vec2<u32>', 'topIds!': 'u32', 'topValues!': 'f32' },
    ['count', 'k', 'listed'],
  ),
  // x = parts · ⌈G / GQ⌉
  attend: program(
    'attend',
    { queries: 'vec4<f32>', keys: 'vec4<u32>', values: 'vec4<u32>', ids: 'u32', 'partials!': 'u32' },
    [
      'keyCap',
      'valueCap',
      'first',
      'before',
      'after',
      'base',
      'k',
      'total',
      'run',
      'parts',
      'heads',
      'scale: f32',
      'minusInf',
      'lo',
      'hi',
    ],
  ),
  // x = ⌈d / 32⌉, y = Hq
  merge: program('merge', { partials: 'f32', 'output!': 'f32', 'lse!': 'u32' }, ['parts', 'heads', 'minusInf']),
  // x = ⌈T · G / 64⌉
  dense: program(
    'dense',
    { queries: 'vec4<f32>', keys: 'u32', values: 'vec4<u32>', 'output!': 'vec4<f32>', 'lse!': 'f32' },
    ['keyCap', 'valueCap', 'tokens', 'first', 'scale: f32', 'lo', 'hi'],
  ),
  // x = ⌈T · n / 8 / 256⌉
  lookup: program('lookup', { ids: 'u32', table: 'vec4<u32>', 'output!': 'vec4<u32>' }, [
    'tokens',
    'rows',
    'width',
    'lo',
    'hi',
  ]),
  // x = ⌈R / (256 / LANES)⌉
  norm: program('norm', { input: 'vec4<f32>', weight: 'vec4<f32>', 'output!': 'vec4<f32>' }, [
    'rows',
    'width',
    'epsilon: f32',
  ]),
  // x = ⌈outer · inner / (256 / LANES)⌉
  rope: program('rope', { input: 'vec4<u32>', table: 'vec4<f32>', norm: 'vec4<f32>', 'output!': 'vec4<u32>' }, [
    'outer',
    'inner',
    'd',
    'turned',
    'normed',
    'tokens_outer',
    'epsilon: f32',
  ]),
  // x = ⌈m / (1024 / LANES)⌉, half as many outputs a workgroup where GATED; a job for every 8 tokens
  'linear-few': program('linear', { ...linear, norm: 'vec4<f32>', up: 'vec4<u32>', 'output!': 'f32' }, [
    ...linearFields,
    'epsilon: f32',
  ]),
  // x = ⌈m / 128⌉, a job for every 64 tokens
  'linear-many': program('linear', { ...linear, 'output!': 'f32' }, linearFields),
  // x = ⌈count / 256⌉
  gate: program('gate', { gate: 'f32', up: 'f32', 'output!': 'f32' }, ['count']),
} as const satisfies Record<string, Program>
export type ProgramName = keyof typeof PROGRAMS

/** Bytes of one element of each binding; a `Word` has 4, 8 or 16. */
export function elementBytes(name: ProgramName, spec: Spec): number[] {
  return Object.values<Element>(PROGRAMS[name].bindings).map((e) => ELEMENTS[e] || 4 * wordOf(spec))
}

/** Whether each binding is written. */
export function written(name: ProgramName): boolean[] {
  return Object.keys(PROGRAMS[name].bindings).map((binding) => binding.endsWith('!'))
}

/** u32 words a `Word` holds: as many as one load can take of a key's sign plane. */
function wordOf(spec: Spec): number {
  return Math.min(4, Math.ceil((spec.D ?? 32) / 32))
}

/** Names of a job's words, padded to a multiple of four. */
export function jobFields(name: ProgramName): string[] {
  const { bindings, fields } = PROGRAMS[name]
  const at = Object.keys(bindings).map((binding) => `at_${binding.replace('!', '')}`)
  const all = [...fields, ...at, 'head0', 'gy', 'gx', 'block0']
  while (all.length % 4) all.push(`pad${all.length}`)
  return all
}

/** The complete WGSL of a program for one specialization. */
export function wgsl(name: ProgramName, spec: Spec): string {
  const { source, bindings } = PROGRAMS[name]
  const constants = Object.entries(spec).map(([key, value]) => {
    if (key === 'INV_SQRT_D') return `const ${key}: f32 = ${value};`
    return key === 'LO' ? `const LO: i32 = ${value};` : `const ${key}: u32 = ${value}u;`
  })
  const struct = jobFields(name).map((field) => (field.includes(':') ? field : `${field}: u32`))
  const storage = Object.entries<Element>(bindings).map(([key, element], i) => {
    const mode = key.endsWith('!') ? 'read_write' : 'read'
    return `@group(0) @binding(${i}) var<storage, ${mode}> ${key.replace('!', '')}: array<${element}>;`
  })
  const head = [
    ...(spec.SUBGROUP ? ['enable subgroups;'] : []),
    ...constants,
    `struct Job { ${struct.join(', ')} }`,
    `@group(1) @binding(0) var<uniform> jobs: array<Job, ${MAX_JOBS}>;`,
    ...storage,
  ]
  const { text, uses } = section(source, name)
  const parts = [head.join('\n'), SOURCES.shared]
  if (Object.values<Element>(bindings).includes('Word')) parts.push(section('word', `word-${wordOf(spec)}`).text)
  for (const used of uses) parts.push(SOURCES[used])
  if ('SUBGROUP' in spec)
    parts.push(section('lane-sums', spec.SUBGROUP ? 'lane-sums-shuffled' : 'lane-sums-shared').text)
  return [...parts, text].join('\n')
}

/** What a file says before its first section (unless `alone`), and the section itself; a file without sections is one. */
function section(source: keyof typeof SOURCES, name: string): { text: string; uses: (keyof typeof SOURCES)[] } {
  const [shared, ...sections] = SOURCES[source].split(/^\/\/! program /m)
  if (!sections.length) return { text: shared, uses: [] }
  for (const text of sections) {
    const [first] = text.split('\n', 1)
    const [title, ...words] = first.split(' ')
    if (title !== name) continue
    const uses = words.includes('uses') ? [words[words.length - 1] as keyof typeof SOURCES] : []
    return { text: `${words.includes('alone') ? '' : shared}\n${text.slice(first.length)}`, uses }
  }
  throw new Error(`${source}.wgsl has no program ${name}`)
}
