import { elementBytes, jobFields, PROGRAMS, type ProgramName, type Spec, wgsl, written } from '../../wgsl/programs.ts'

/** A compiled program and the layout its bindings are grouped by. */
export interface Compiled {
  readonly pipeline: GPUComputePipeline
  readonly layout: GPUBindGroupLayout
  /** Names the layout in cache keys. */
  readonly modes: string
  /** Bytes of an element of each binding. */
  readonly sizes: readonly number[]
  /** Whether each word of a job is f32. */
  readonly floats: readonly boolean[]
}

const COMPUTE = 4

/** Pipelines by (program, specialization): compiled once, ahead of use by `warm`, else at first use. */
export class Pipelines {
  private readonly device: GPUDevice
  private readonly compiled = new Map<string, Compiled>()
  private readonly compiling = new Map<string, Promise<void>>()
  private readonly layouts = new Map<string, GPUBindGroupLayout>()
  readonly uniforms: GPUBindGroupLayout
  private wanted: Map<string, [ProgramName, Spec]> | undefined

  constructor(device: GPUDevice) {
    this.device = device
    this.uniforms = device.createBindGroupLayout({
      entries: [{ binding: 0, visibility: COMPUTE, buffer: { type: 'uniform', hasDynamicOffset: true } }],
    })
  }

  /**
   * Undefined while `warm` only notes what would be needed.
   * @param key `keyOf(name, spec)`
   */
  get(key: string, name: ProgramName, spec: Spec): Compiled | undefined {
    const known = this.compiled.get(key)
    if (this.wanted) {
      if (!known) this.wanted.set(key, [name, spec])
      return undefined
    }
    if (known) return known
    const { layout, modes } = this.layoutOf(name)
    const pipeline = this.device.createComputePipeline(this.describe(name, spec, layout))
    const made = { pipeline, layout, modes, ...wordsOf(name, spec) }
    this.compiled.set(key, made)
    return made
  }

  /** Runs `body`, whose dispatches only name their programs, and compiles those at once and asynchronously. */
  async warm(body: () => void): Promise<void> {
    this.wanted = new Map()
    try {
      body()
    } finally {
      const wanted = this.wanted
      this.wanted = undefined
      await Promise.all([...wanted].map(([key, [name, spec]]) => this.once(key, name, spec)))
    }
  }

  get collecting(): boolean {
    return this.wanted !== undefined
  }

  /** Two that warm at once share the work. */
  private once(key: string, name: ProgramName, spec: Spec): Promise<void> {
    const under = this.compiling.get(key) ?? this.compile(key, name, spec).finally(() => this.compiling.delete(key))
    this.compiling.set(key, under)
    return under
  }

  private async compile(key: string, name: ProgramName, spec: Spec): Promise<void> {
    const { layout, modes } = this.layoutOf(name)
    const pipeline = await this.device.createComputePipelineAsync(this.describe(name, spec, layout))
    this.compiled.set(key, { pipeline, layout, modes, ...wordsOf(name, spec) })
  }

  private describe(name: ProgramName, spec: Spec, layout: GPUBindGroupLayout): GPUComputePipelineDescriptor {
    const module = this.device.createShaderModule({ label: keyOf(name, spec), code: wgsl(name, spec) })
    const pipelineLayout = this.device.createPipelineLayout({ bindGroupLayouts: [layout, this.uniforms] })
    return { label: name, layout: pipelineLayout, compute: { module, entryPoint: 'main' } }
  }

  private layoutOf(name: ProgramName): { layout: GPUBindGroupLayout; modes: string } {
    const write = written(name)
    const modes = write.map((w) => (w ? 'w' : 'r')).join('')
    const known = this.layouts.get(modes)
    if (known) return { layout: known, modes }
    const layout = this.device.createBindGroupLayout({
      entries: Object.keys(PROGRAMS[name].bindings).map((_, binding) => ({
        binding,
        visibility: COMPUTE,
        buffer: { type: write[binding] ? 'storage' : 'read-only-storage' },
      })),
    })
    this.layouts.set(modes, layout)
    return { layout, modes }
  }
}

function wordsOf(name: ProgramName, spec: Spec): Pick<Compiled, 'sizes' | 'floats'> {
  return { sizes: elementBytes(name, spec), floats: jobFields(name).map((field) => field.endsWith(': f32')) }
}

/** Names a specialization; the constants of one program always come in one order. */
export function keyOf(name: ProgramName, spec: Spec): string {
  let key: string = name
  for (const constant in spec) key += ` ${spec[constant]}`
  return key
}
