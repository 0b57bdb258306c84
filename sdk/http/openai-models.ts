import { ParisError } from '../errors.ts'
import type { Model } from '../llm/index.ts'
import { notReady, unknownModel } from './openai-errors.ts'
import type { OpenAiOptions } from './openai-options.ts'

/** The models of an app: loaded when asked for, and again after a lost device. */
export class Models {
  private readonly given: ReadonlyMap<string, Model | (() => Promise<Model>)>
  private readonly loaded = new Map<string, Promise<Model>>()
  private closed = false

  constructor(models: OpenAiOptions['models']) {
    this.given = new Map(Object.entries(models))
  }

  get names(): string[] {
    return [...this.given.keys()]
  }

  /** @throws ParisError `not_found` */
  check(name: string): void {
    if (!this.given.has(name)) throw unknownModel(JSON.stringify(name.slice(0, 80)))
  }

  /** @throws ParisError `not_found`, `not_ready` once closed, and what loading it throws */
  async get(name: string): Promise<Model> {
    this.check(name)
    if (this.closed) throw notReady('a server that is being stopped')
    const given = this.given.get(name)
    if (typeof given !== 'function') return given as Model
    const loading = this.loaded.get(name) ?? given()
    this.loaded.set(name, loading)
    try {
      return await loading
    } catch (error) {
      if (this.loaded.get(name) === loading) this.loaded.delete(name)
      throw error
    }
  }

  /** Runs what touches a model; one whose device was lost is let go, and loaded again when it is next asked for. */
  async on<T>(name: string, model: Model, task: () => Promise<T>): Promise<T> {
    try {
      return await task()
    } catch (error) {
      if (error instanceof ParisError && (error.code === 'device_lost' || error.code === 'disposed'))
        await this.letGo(name, model)
      throw error
    }
  }

  /** Loads all of them. */
  async ready(): Promise<void> {
    await Promise.all(this.names.map((name) => this.get(name)))
  }

  async dispose(): Promise<void> {
    this.closed = true
    const loading = [...this.loaded.values()]
    this.loaded.clear()
    for (const model of await Promise.all(loading.map((one) => one.catch(() => undefined))))
      if (model) await free(model)
  }

  private async letGo(name: string, model: Model): Promise<void> {
    const loading = this.loaded.get(name)
    if (!loading || (await loading.catch(() => undefined)) !== model || this.loaded.get(name) !== loading) return
    this.loaded.delete(name)
    void free(model)
  }
}

async function free(model: Model): Promise<void> {
  await model.dispose().catch(() => {})
  await model.engine.dispose().catch(() => {})
}
