import type { GpuRecorder } from '../backend.ts'
import { isDense } from '../cache/zones.ts'
import { CallQueue } from '../calls.ts'
import type { Engine } from '../engine.ts'
import { throwIfAborted } from '../errors.ts'
import type { Session } from '../session/session.ts'
import { type Decoder, embed, finish, head, type Pass, placeTables, project } from './decoder.ts'
import { HostRunner } from './host-runner.ts'
import { Logits } from './logits.ts'
import { idBytes, type Runner, rowsOf, takeBack } from './runner.ts'
import { SplitRunner } from './split-runner.ts'
import { type Workspace, Workspaces } from './workspace.ts'

/** Layers a command buffer: the device begins with the first while the others are handed over. */
const BUFFER_LAYERS = 6

/** A step that was recorded before its tokens are known. */
interface Ahead {
  readonly sessions: readonly Session[]
  readonly positions: readonly number[]
  readonly recorded: Recorded
}

interface Recorded {
  readonly commands: readonly GPUCommandBuffer[]
  readonly work: Workspace
  readonly staging: GPUBuffer | undefined
  readonly release: (submitted?: boolean) => void
}

/**
 * Decodes on a GPU: one encoder and one submit for six layers, the cache recorded between the model's kernels, nothing but
 * logits read back. A step does not depend on its tokens' ids until they are written, so the next one is recorded while the
 * device runs the present one.
 */
export class GpuRunner implements Runner {
  private readonly workspaces: Workspaces
  private readonly host: HostRunner
  private readonly split: SplitRunner
  private readonly logits: Logits
  private ahead: Ahead | undefined

  constructor(
    private readonly engine: Engine,
    private readonly decoder: Decoder,
    private readonly recorder: GpuRecorder,
  ) {
    this.workspaces = new Workspaces(decoder.backend, decoder.config)
    this.host = new HostRunner(engine, decoder, this.workspaces)
    this.logits = new Logits(decoder.backend, recorder.device)
    this.split = new SplitRunner(engine, decoder, recorder, this.workspaces, this.logits)
  }

  async prompt(
    session: Session,
    ids: readonly number[],
    first: number,
    { logits, signal }: { logits: boolean; signal?: AbortSignal },
  ): Promise<Float32Array | undefined> {
    await this.settle()
    if (onHost(session)) return this.host.prompt(session, ids, first, { logits, signal })
    const { config } = this.decoder
    const T = ids.length
    const work = await this.workspaces.reserve(T, 1)
    const pass: Pass = { kind: 'prompt', positions: ids.map((_, t) => first + t) }
    const recorded = await this.record([session], work, pass, logits ? 1 : 0, (encoder, l) => {
      const { queries, keys, values, attended: output } = this.ranges(work)
      return [session.encodePrefill(encoder, l, { queries, keys, values, output, tokens: T })]
    })
    const read = this.submit(recorded, ids, config.vocabulary * 4)
    if (logits) return read
    await this.recorder.device.queue.onSubmittedWorkDone()
    this.decoder.backend.check?.()
    return undefined
  }

  async step(
    sessions: readonly Session[],
    ids: readonly number[],
    positions: readonly number[],
    options: { ahead: boolean; signal?: AbortSignal },
  ): Promise<Float32Array[]> {
    const T = ids.length
    if (sessions.some(onHost)) {
      await this.settle()
      throwIfAborted(options.signal, 'model.decodeBatch')
      return this.split.step(sessions, ids, positions)
    }
    if (this.auditComes(sessions, positions)) {
      await this.settle()
      return this.host.step(sessions, ids, positions, options)
    }
    const same = this.ahead && sameItems(this.ahead.sessions, sessions) && sameItems(this.ahead.positions, positions)
    if (!same) await this.settle()
    const recorded = this.ahead?.recorded ?? (await this.recordStep(sessions, positions))
    this.ahead = undefined
    const read = this.submit(recorded, ids, T * this.decoder.config.vocabulary * 4)
    read.catch(() => {})
    if (options.ahead) await this.prepare(sessions, positions)
    return rowsOf(await read, T)
  }

  /** Records the step after this one, where it has room. */
  private async prepare(sessions: readonly Session[], present: readonly number[]): Promise<void> {
    const positions = present.map((position) => position + 1)
    if (sessions.some((session, t) => positions[t] >= session.config.capacity)) return
    try {
      this.ahead = { sessions, positions, recorded: await this.recordStep(sessions, positions) }
    } catch {
      // What fails here fails again, and is told, in the step itself.
    }
  }

  /** Whether this step must go through the host, where retrieval is audited; counts its retrievals if not. */
  private auditComes(sessions: readonly Session[], positions: readonly number[]): boolean {
    const { layers } = this.decoder.config
    const audits = sessions.flatMap(({ state, config }, t) => (isDense(positions[t] + 1, config) ? [] : [state.audit]))
    if (audits.some((audit) => audit.comes(layers))) return true
    for (const audit of audits) audit.skip(layers)
    return false
  }

  async settle(): Promise<void> {
    const { ahead } = this
    this.ahead = undefined
    if (!ahead) return
    this.drop(ahead.recorded)
    await Promise.all(ahead.sessions.map((session, t) => takeBack(session, ahead.positions[t])))
  }

  async dispose(): Promise<void> {
    await this.settle()
    this.logits.dispose()
    this.workspaces.dispose()
  }

  private async recordStep(sessions: readonly Session[], positions: readonly number[]): Promise<Recorded> {
    const { queryHeads, kvHeads, headDim: d } = this.decoder.config
    const T = positions.length
    const work = await this.workspaces.reserve(T, T)
    const bytes = { q: queryHeads * d * 4, kv: kvHeads * d * 4 }
    return this.record(sessions, work, { kind: 'step', positions }, T, (encoder, l) => {
      const all = this.ranges(work)
      const part = ({ buffer, offset }: { buffer: GPUBuffer; offset: number }, by: number) => ({
        buffer,
        offset: offset + by,
      })
      const appended = sessions.map((session, t) => {
        const [keys, values] = [part(all.keys, t * bytes.kv), part(all.values, t * bytes.kv)]
        return session.encodeAppend(encoder, l, { keys, values, tokens: 1 })
      })
      const items = sessions.map((session, t) => {
        const [queries, output] = [part(all.queries, t * bytes.q), part(all.attended, t * bytes.q)]
        return { session, layer: l, queries, output }
      })
      return [...appended, this.engine.encodeAttendBatch(encoder, items)]
    })
  }

  /**
   * Records a pass, with the cache's part of each layer in its place, once calls of the sessions themselves have ended;
   * takes lengths back where that fails.
   */
  private async record(
    sessions: readonly Session[],
    work: Workspace,
    pass: Pass,
    rows: number,
    attend: (encoder: GPUCommandEncoder, layer: number) => (() => void)[],
  ): Promise<Recorded> {
    const { decoder, recorder } = this
    const T = pass.positions.length
    const { layers } = decoder.config
    const queues = sessions.map(({ state }) => state.queue)
    // A snapshot that is captured, say: nothing can be recorded meanwhile.
    while (queues.some(({ busy }) => busy)) await CallQueue.runAll(queues, async () => {})
    const commands: GPUCommandBuffer[] = []
    const releases: ((submitted?: boolean) => void)[] = []
    const release = (submitted?: boolean) => {
      for (const free of releases) free(submitted)
    }
    const bytes = rows * decoder.config.vocabulary * 4
    const staging = rows > 0 ? this.logits.take(bytes) : undefined
    try {
      for (let first = 0; first < layers; first += BUFFER_LAYERS) {
        const encoder = recorder.device.createCommandEncoder()
        const end = Math.min(layers, first + BUFFER_LAYERS)
        releases.push(
          recorder.recordInto(encoder, () => {
            if (first === 0) {
              placeTables(decoder, work, pass)
              embed(decoder, work, T)
            }
            for (let l = first; l < end; l++) {
              project(decoder, work, l, pass)
              releases.push(...attend(encoder, l))
              finish(decoder, work, l, pass)
            }
            if (end === layers && rows > 0) head(decoder, work, T, rows)
          }),
        )
        const { buffer, offset } = recorder.range(work.logits)
        if (end === layers && staging) encoder.copyBufferToBuffer(buffer, offset, staging, 0, bytes)
        commands.push(encoder.finish())
      }
    } catch (error) {
      release()
      if (staging) this.logits.give(staging)
      const firsts = pass.kind === 'prompt' ? [pass.positions[0]] : pass.positions
      for (const [t, session] of sessions.entries()) await takeBack(session, firsts[t])
      throw error
    }
    return { commands, work, staging, release }
  }

  private submit(
    { commands, work, staging, release }: Recorded,
    ids: readonly number[],
    bytes: number,
  ): Promise<Float32Array> {
    const { device } = this.recorder
    const { buffer, offset } = this.recorder.range(work.ids)
    device.queue.writeBuffer(buffer, offset, idBytes(ids))
    for (const buffer of commands) device.queue.submit([buffer])
    release(true)
    return staging ? this.logits.read(staging, bytes) : Promise.resolve(new Float32Array(0))
  }

  private drop({ staging, release }: Recorded): void {
    release()
    if (staging) this.logits.give(staging)
  }

  private ranges(work: Workspace) {
    const of = (name: 'queries' | 'keys' | 'values' | 'attended') => this.recorder.range(work[name])
    return { queries: of('queries'), keys: of('keys'), values: of('values'), attended: of('attended') }
  }
}

/** Rows on the host are fetched between submits. */
function onHost({ state }: Session): boolean {
  return state.cache?.offload !== undefined
}

function sameItems<T>(a: readonly T[], b: readonly T[]): boolean {
  return a.length === b.length && a.every((item, i) => item === b[i])
}
