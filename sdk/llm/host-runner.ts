import type { Buf } from '../backend.ts'
import { f32View } from '../bytes.ts'
import type { Engine } from '../engine.ts'
import type { Session } from '../session/session.ts'
import { type Decoder, embed, finish, head, type Pass, placeTables, project } from './decoder.ts'
import { idBytes, type Runner, rowsOf } from './runner.ts'
import { Workspaces } from './workspace.ts'

/** Decodes on any backend; queries, keys and values pass through the host, and the sessions take them as arrays. */
export class HostRunner implements Runner {
  private readonly workspaces: Workspaces

  constructor(
    private readonly engine: Engine,
    private readonly decoder: Decoder,
    workspaces?: Workspaces,
  ) {
    this.workspaces = workspaces ?? new Workspaces(decoder.backend, decoder.config)
  }

  async prompt(
    session: Session,
    ids: readonly number[],
    first: number,
    { logits, signal }: { logits: boolean; signal?: AbortSignal },
  ): Promise<Float32Array | undefined> {
    const { config, backend } = this.decoder
    const { queryHeads, kvHeads, headDim: d, layers } = config
    const T = ids.length
    const work = await this.workspaces.reserve(T, 1)
    const pass: Pass = { kind: 'prompt', positions: ids.map((_, t) => first + t) }
    this.begin(ids, pass, work)
    for (let l = 0; l < layers; l++) {
      project(this.decoder, work, l, pass)
      const [queries, keys, values] = await Promise.all([
        this.read(work.queries, T * queryHeads * d),
        this.read(work.keys, T * kvHeads * d),
        this.read(work.values, T * kvHeads * d),
      ])
      const { output } = await session.prefill(l, { queries, keys, values }, { signal })
      this.write(work.attended, output)
      finish(this.decoder, work, l, pass)
    }
    if (!logits) return undefined
    head(this.decoder, work, T, 1)
    return f32View(await backend.read(work.logits, 0, config.vocabulary * 4))
  }

  async step(
    sessions: readonly Session[],
    ids: readonly number[],
    positions: readonly number[],
    { signal }: { signal?: AbortSignal },
  ): Promise<Float32Array[]> {
    const { config, backend } = this.decoder
    const T = ids.length
    const [wide, narrow] = [config.queryHeads * config.headDim, config.kvHeads * config.headDim]
    const work = await this.workspaces.reserve(T, T)
    const pass: Pass = { kind: 'step', positions }
    const attended = new Float32Array(T * wide)
    this.begin(ids, pass, work)
    for (let layer = 0; layer < config.layers; layer++) {
      project(this.decoder, work, layer, pass)
      const [queries, keys, values] = await Promise.all([
        this.read(work.queries, T * wide),
        this.read(work.keys, T * narrow),
        this.read(work.values, T * narrow),
      ])
      const of = (x: Float32Array, t: number, width: number) => x.subarray(t * width, (t + 1) * width)
      await this.engine.appendBatch(
        sessions.map((session, t) => ({ session, layer, keys: of(keys, t, narrow), values: of(values, t, narrow) })),
        { signal },
      )
      const items = sessions.map((session, t) => ({ session, layer, queries: of(queries, t, wide) }))
      for (const [t, { output }] of (await this.engine.attendBatch(items, { signal })).entries())
        attended.set(output, t * wide)
      this.write(work.attended, attended)
      finish(this.decoder, work, layer, pass)
    }
    head(this.decoder, work, T, T)
    return rowsOf(f32View(await backend.read(work.logits, 0, T * config.vocabulary * 4)), T)
  }

  async settle(): Promise<void> {}

  async dispose(): Promise<void> {
    this.workspaces.dispose()
  }

  private begin(ids: readonly number[], pass: Pass, work: Awaited<ReturnType<Workspaces['reserve']>>): void {
    this.decoder.backend.write(work.ids, 0, idBytes(ids))
    placeTables(this.decoder, work, pass)
    embed(this.decoder, work, ids.length)
  }

  private async read(buf: Buf, count: number): Promise<Float32Array> {
    return f32View(await this.decoder.backend.read(buf, 0, count * 4))
  }

  private write(buf: Buf, data: Float32Array): void {
    this.decoder.backend.write(buf, 0, new Uint8Array(data.buffer, data.byteOffset, data.byteLength))
  }
}
